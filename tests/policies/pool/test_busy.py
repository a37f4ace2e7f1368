"""The most machines that jobs had at once."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.models.history import Epoch
from holdfast.policies.pool.busy import most_at_once


def epoch(opened_at: float, closed_at: float | None, *machines: str) -> Epoch:
    given = {"job": "a", "epoch": 1, "start_step": 0, "code_version": "v1", "reason": "test"}
    return Epoch.model_validate(
        given | {"opened_at": opened_at, "closed_at": closed_at, "machines": machines}
    )


def most(*epochs: Epoch, since: float = 0.0) -> dict[str, int]:
    return most_at_once(epochs, since, lambda name: name[0])


def test_the_busiest_moment_counts() -> None:
    """A machine that was replaced at a restart makes no more of them than there were at once."""
    day = (
        epoch(0, 10, "h1", "h2"),
        epoch(10, 20, "h1", "h3"),
        epoch(12, 15, "h4", "a1"),
        epoch(30, None, "h1"),
    )
    assert most(*day) == {"h": 3, "a": 1}
    assert most(*day, since=15) == {"h": 2}
    assert most(*day, since=25) == {"h": 1}
    assert most() == {}


def test_a_machine_of_two_jobs_counts_once() -> None:
    assert most(epoch(0, 10, "h1"), epoch(5, 20, "h1", "h2")) == {"h": 2}


@given(
    st.lists(
        st.tuples(
            st.integers(0, 9), st.one_of(st.none(), st.integers(0, 12)), st.sets(st.sampled_from("abcd"))
        ),
        max_size=6,
    ),
    st.integers(0, 10),
)
def test_it_is_what_counting_at_every_moment_gives(
    given_: list[tuple[int, int | None, set[str]]], since: int
) -> None:
    """Of half-open times, at each whole number and after it."""
    epochs = [epoch(opened, closed, *sorted(names)) for opened, closed, names in given_]
    at_once = [
        {
            name
            for each in epochs
            if each.opened_at <= at < (99 if each.closed_at is None else each.closed_at)
            for name in each.machines
        }
        for at in range(since, 13)
    ]
    expected = max(map(len, at_once))
    assert most_at_once(epochs, since, lambda _: "all").get("all", 0) == expected

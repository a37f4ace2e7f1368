"""Groups of a replay that must compute the same."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.models.agent import StepDigest
from holdfast.policies.diagnose import agreement, replay_groups
from holdfast.policies.diagnose.agreement import GroupResults, compare

RIGHT = "right"


def played(what: str, size: int = 2, kind: str = "H100") -> GroupResults:
    """A group that computed ``what`` in its second step."""
    digests = tuple(
        tuple(StepDigest(step=step, loss="0x1p0", gradients=RIGHT if step == 1 else what) for step in (1, 2))
        for _ in range(size)
    )
    return GroupResults(size=size, kind=kind, digests=digests)


def test_most_of_three_say_what_is_right_and_where_the_odd_one_parted() -> None:
    """Its index, the first step that differs, and what of it."""
    found = compare([played(RIGHT), played("wrong"), played(RIGHT)])
    assert found.odd == (1,)
    assert found.reasons == ("group 1 differs from 2 others: gradients of rank 0 at step 2",)


def test_two_that_differ_accuse_none() -> None:
    """One of them is wrong; nothing shows which."""
    found = compare([played(RIGHT), played("wrong")])
    assert (found.odd, found.differ) == ((), True)


def test_others_in_size_or_hardware_are_not_compared_nor_those_without_results() -> None:
    """They may differ by right."""
    found = compare(
        [
            played("a", size=2),
            played("b", size=1),
            played("c", kind="A100"),
            GroupResults(size=2, kind="H100"),
        ]
    )
    assert found == agreement.Agreement()


@given(st.lists(st.sampled_from("abc"), max_size=9), st.randoms(use_true_random=False))
def test_only_a_minority_against_a_strict_majority_is_odd(words: list[str], shuffled: random.Random) -> None:
    """Whatever the order of the groups; agreement accuses no machine."""
    found = compare([played(word) for word in words])
    right = [word for word in set(words) if 2 * words.count(word) > len(words) and len(words) >= 3]
    expected = [i for i, word in enumerate(words) if right and word != right[0]]
    assert list(found.odd) == expected
    assert found.differ == (len(set(words)) > 1)
    order = shuffled.sample(range(len(words)), len(words))
    again = compare([played(words[i]) for i in order])
    assert sorted(order[i] for i in again.odd) == expected


@pytest.mark.parametrize(
    ("second", "odd"),
    [
        ([RIGHT, "wrong", RIGHT, RIGHT], (1,)),
        ([RIGHT, "otherwise wrong", RIGHT, RIGHT], (1,)),
        ([RIGHT, RIGHT, RIGHT, RIGHT], ()),
        ([RIGHT, RIGHT, "wrong", RIGHT], ()),
        (["drifts", "wrong", "drifts", "drifts"], ()),
    ],
)
def test_a_second_round_must_show_it_again_while_the_others_reproduce(
    second: list[str], odd: tuple[int, ...]
) -> None:
    """Kernels that are not deterministic differ here and there: that is no machine's fault."""
    first = [played(RIGHT), played("wrong"), played(RIGHT), played(RIGHT)]
    assert agreement.again(first, [played(word) for word in second]) == odd


@given(st.integers(5, 60), st.data())
def test_one_machine_that_computes_wrongly_is_found_and_no_other(machines: int, data: st.DataObject) -> None:
    """Over the plan's groups, or played alone: the verdict is that machine or none."""
    plan = replay_groups.plan(machines)
    bad = data.draw(st.integers(0, machines - 1))

    def phase(groups: tuple[tuple[int, ...], ...]) -> list[GroupResults]:
        wrong = [f"wrong at {group.index(bad)}" if bad in group else RIGHT for group in groups]
        return [played(what, size=len(group)) for what, group in zip(wrong, groups, strict=True)]

    h, v, s = phase(plan.horizontal), phase(plan.vertical), phase(tuple((x,) for x in range(machines)))
    crossed = replay_groups.suspects(plan, agreement.again(h, h), agreement.again(v, v))
    assert set(crossed.suspects) <= {bad}
    assert replay_groups.alone(agreement.again(s, s)).suspects == (bad,)


@given(st.integers(2, 30))
def test_a_job_that_computes_something_else_each_time_accuses_none(machines: int) -> None:
    """Every group differs from every other, in both rounds."""
    results = itertools.count()

    def phase() -> list[GroupResults]:
        return [played(str(next(results))) for _ in range(machines)]

    assert agreement.again(phase(), phase()) == ()

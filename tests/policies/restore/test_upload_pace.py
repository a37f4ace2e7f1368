"""Ranks of different speed agree on what to upload without messages."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from holdfast.policies.restore.upload_pace import SLOWEST, Pace


def simulate(
    seconds: list[float], every: int = 10, steps: int = 2000, *, first: int = 1, gap: int = 1
) -> list[set[int]]:
    """Steps that each rank uploads, one step a second, given how long an upload takes each.

    ``gap``: steps from one save that all ranks have to the next, from step ``first`` on.
    """
    done = []
    for takes in seconds:
        pace, free_at, skipped, mine = Pace(), 0.0, False, set()
        for step in range(first, steps + 1, gap):
            if free_at and free_at <= step:
                pace, free_at = (pace if skipped else pace.kept_up()), 0.0
            if not pace.due(step, max(0, step - gap), every):
                continue
            if free_at:
                pace, skipped = pace.skipped(), True
                continue
            mine.add(step)
            free_at, skipped = step + takes, False
        done.append(mine)
    return done


@given(st.lists(st.floats(0.5, 90.0), min_size=2, max_size=6))
def test_ranks_of_any_speed_complete_checkpoints(seconds: list[float]) -> None:
    """Again and again, at a rate that the slowest can hold."""
    common = sorted(set.intersection(*simulate(seconds)))
    slowest = max(seconds)
    gaps = [later - earlier for earlier, later in pairwise(common)]
    assert len(common) >= 3
    assert max(gaps) <= 8 * (slowest + 10)


@given(
    st.lists(st.floats(0.5, 90.0), min_size=2, max_size=4),
    st.integers(1, 30),
    st.integers(1, 30),
    st.integers(1, 25),
)
def test_ranks_complete_checkpoints_of_whatever_steps_are_saved(
    seconds: list[float], first: int, gap: int, every: int
) -> None:
    """Also where no multiple is ever among them, as where a save takes a little more than one step."""
    common = sorted(set.intersection(*simulate(seconds, every, first=first, gap=gap)))
    gaps = [later - earlier for earlier, later in pairwise([0, *common, 2000])]
    assert max(gaps) <= first + 8 * (max(seconds) + every + gap)


def test_a_store_that_keeps_up_gets_every_due_step() -> None:
    """Nothing is left out without need."""
    (mine,) = simulate([3.0])
    assert mine == set(range(10, 2001, 10))


def test_no_checkpoints_wanted() -> None:
    """Never due."""
    assert not Pace().due(20, 19, 0)


def test_the_rate_is_bounded_and_comes_back() -> None:
    """After the store was away for long."""
    pace = Pace()
    for _ in range(50):
        pace = pace.skipped()
    assert pace.stride == SLOWEST
    for _ in range(10):
        pace = pace.kept_up()
    assert pace.stride == 1

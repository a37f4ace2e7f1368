"""States of abandoned branches are never restored."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from holdfast.policies.restore.lineage import valid


@dataclass(frozen=True)
class Kept:
    """A saved state."""

    epoch: int
    step: int


@dataclass(frozen=True)
class Began:
    """An epoch's start."""

    epoch: int
    start_step: int


def test_what_lies_beyond_a_restored_step_is_abandoned() -> None:
    """After going back to step 10, the old steps 11 and 12 are gone for good."""
    states = [Kept(1, 10), Kept(1, 11), Kept(1, 12), Kept(2, 11)]
    assert valid(states, [Began(1, 0), Began(2, 10)]) == [Kept(1, 10), Kept(2, 11)]


def test_a_start_from_scratch_abandons_everything() -> None:
    """Nothing saved before it counts."""
    assert valid([Kept(1, 5), Kept(2, 6)], [Began(1, 0), Began(2, 5), Began(3, 0)]) == []


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 10)), max_size=6))
def test_what_is_valid_is_what_a_replayed_history_still_holds(plan: list[tuple[int, int]]) -> None:
    """Against a model that keeps the surviving state per step, and drops what each restart goes back over."""
    alive: dict[int, Kept] = {}
    states: list[Kept] = []
    epochs: list[Began] = []
    for number, (back, steps) in enumerate(plan, start=1):
        newest = max(alive, default=0)
        start = max(0, newest - back)
        epochs.append(Began(number, start))
        alive = {step: kept for step, kept in alive.items() if step <= start}
        for step in range(start + 1, start + steps + 1):
            alive[step] = Kept(number, step)
            states.append(alive[step])
    assert set(valid(states, epochs)) == set(alive.values())

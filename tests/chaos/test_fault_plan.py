"""Plans of chaos: seeded, bounded, and refused where a fault is unknown."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.chaos import fault_plan
from holdfast.errors import SettingsError


def make(seed: int = 1, **changes: Any) -> tuple[fault_plan.Strike, ...]:
    chosen: dict[str, Any] = {"every_s": 15, "for_s": 600, "hold_s": 8, "machines": 4, "ranks_per_machine": 2}
    groups = fault_plan.parse("kill-rank,kill-gateway,kill-rank+stop-agent")
    return fault_plan.make(groups, seed=seed, **(chosen | changes))


def test_a_seed_is_a_plan() -> None:
    """The same again; another seed, another plan."""
    assert make(1) == make(1)
    assert make(1) != make(2)
    assert len(make()) == 40


@given(st.integers(), st.integers(1, 9), st.integers(1, 8), st.floats(0.1, 100))
def test_all_that_is_planned_exists(seed: int, machines: int, ranks: int, hold_s: float) -> None:
    """Slots and ranks of the job, times within the run, holds within the longest; pairs hit two machines."""
    for strike in make(seed, machines=machines, ranks_per_machine=ranks, hold_s=hold_s):
        assert 0 < strike.at_s <= 600
        assert set(strike.slots) <= set(range(machines))
        assert set(strike.local_ranks) <= set(range(ranks))
        assert strike.hold_s <= hold_s + 0.001
        assert machines == 1 or len(set(strike.slots)) == len(strike.faults)


def test_each_comes_before_any_comes_again() -> None:
    """A short run has as many kinds of faults as fit."""
    planned = [strike.faults for strike in make()]
    assert len(set(planned[:3])) == len(set(planned[3:6])) == 3


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("kill-rnak", "'kill-rnak' is no fault.*kill-rank"),
        ("kill-rank+kill-rank", "names one fault twice"),
        (" , ", "is empty"),
    ],
)
def test_what_is_no_fault_is_refused(text: str, says: str) -> None:
    """With what there is."""
    with pytest.raises(SettingsError, match=says):
        fault_plan.parse(text)

"""Ranks that only stand out in a hang: when a machine goes for it, and how many."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.policies.config.policy import Policy
from holdfast.policies.detect.standing_out import Accusation, weigh

POLICY = Policy.load().ladder.standing_out
DAY = POLICY.window_s
NOW = 1e6


def seen(*machines: str, ranks: tuple[int, ...] = (), ago: float = 0.0) -> Accusation:
    return Accusation(at=NOW - ago, machines=machines, ranks=ranks)


def test_once_is_no_reason() -> None:
    """It may have had work that the others did not have."""
    found = weigh(seen("m1"), [], [], 4, POLICY)
    assert not found.machines
    assert "m1 stands out 1 of 2 times within 24 h" in found.spared


def test_the_same_machine_again_goes() -> None:
    """Within the window, whatever else stood out between."""
    past = [seen("m1", ranks=(2,), ago=DAY - 1), seen("m3", ranks=(6,), ago=60)]
    assert weigh(seen("m1", ranks=(3,)), past, [], 4, POLICY).machines == ("m1",)
    old = [seen("m1", ranks=(2,), ago=DAY)]
    assert weigh(seen("m1", ranks=(3,)), old, [], 4, POLICY).machines == ()


def test_another_machine_is_another_story() -> None:
    """Each is counted for itself."""
    past = [seen(f"m{number}", ranks=(number,), ago=60) for number in (1, 2, 3)]
    assert not weigh(seen("m0", ranks=(0,)), past, [], 4, POLICY).machines


def test_a_rank_that_stood_out_on_another_machine_has_a_habit() -> None:
    """Rank 0 prepares data at every start, wherever it runs."""
    past = [seen("m0", ranks=(0,), ago=700), seen("m0", ranks=(0,), ago=1400), seen("m4", ranks=(0,), ago=60)]
    found = weigh(seen("m4", ranks=(0,)), past, [], 4, POLICY)
    assert not found.machines
    assert "comes from the job" in found.spared


def test_rank_0_that_stands_out_at_every_start_prepares_what_the_others_wait_for() -> None:
    """No machine goes for that. Another rank, or one that stood out at an earlier start, is no such habit."""

    def at_start(machine: str, rank: int, ago: float = 0.0) -> Accusation:
        return seen(machine, ranks=(rank,), ago=ago).model_copy(update={"starting": True})

    past = [at_start("m0", 0, ago=1400), at_start("m0", 0, ago=700)]
    found = weigh(at_start("m0", 0), past, [], 4, POLICY)
    assert not found.machines
    assert "rank 0 stood out at every start" in found.spared
    assert weigh(seen("m0", ranks=(0,)), past, [], 4, POLICY).machines == ("m0",), "not before a first step"
    assert weigh(at_start("m1", 2), [at_start("m1", 2, ago=700)], [], 4, POLICY).machines == ("m1",)
    mixed = [at_start("m0", 1, ago=700)]
    assert weigh(at_start("m0", 0), mixed, [], 4, POLICY).machines == ("m0",)


def test_no_rank_stands_out() -> None:
    """Nothing to weigh."""
    assert weigh(seen(), [seen("m1")], [], 4, POLICY) == weigh(seen(), [], [], 1, POLICY)


@pytest.mark.parametrize(("size", "most"), [(1, 1), (2, 1), (7, 1), (8, 2), (15, 3), (16, 4), (1200, 4)])
def test_evictions_of_a_job_are_bounded(size: int, most: int) -> None:
    """A quarter of a small job, and never many of a large one."""
    past = [seen("m1", ago=60)]
    assert weigh(seen("m1"), past, [NOW - 1] * (most - 1), size, POLICY).machines == ("m1",)
    full = weigh(seen("m1"), past, [NOW - 1] * most, size, POLICY)
    assert not full.machines
    gone = "1 machine of the job was" if most == 1 else f"{most} machines of the job were"
    assert f"{gone} evicted for that within 24 h, limit {most} of {size}" in full.spared
    assert weigh(seen("m1"), past, [NOW - DAY] * most, size, POLICY).machines == ("m1",)


@given(
    st.lists(st.tuples(st.integers(0, 7), st.floats(1, 3 * DAY), st.booleans()), min_size=1, max_size=80),
    st.integers(1, 64),
)
def test_no_order_of_hangs_drains_a_pool(hangs: list[tuple[int, float, bool]], size: int) -> None:
    """Whichever stands out, however often: never more than the limit within any window."""
    now, past, evicted, fresh = 0.0, [], [], 0
    names = [f"m{number}" for number in range(8)]
    for slot, pause, known in hangs:
        now += pause
        hang = Accusation(at=now, machines=(names[slot],), ranks=(slot,) if known else ())
        found = weigh(hang, past, evicted, size, POLICY)
        assert bool(found.machines) != bool(found.spared)
        past.append(hang)
        if found.machines:
            evicted.append(now)
            fresh += 1
            names[slot] = f"new{fresh}"
        assert sum(now - DAY < at for at in evicted) <= POLICY.limit(size)


@given(st.lists(st.floats(1, 3 * DAY), min_size=1, max_size=40), st.integers(1, 64))
def test_a_habit_of_one_rank_costs_one_machine(pauses: list[float], size: int) -> None:
    """However long it goes on, and wherever the rank is moved."""
    now, past, moved = 0.0, [], 0
    for pause in pauses:
        now += pause
        hang = Accusation(at=now, machines=(f"m{moved}",), ranks=(0,))
        moved += bool(weigh(hang, past, [], size, POLICY).machines)
        past.append(hang)
    assert moved <= 1

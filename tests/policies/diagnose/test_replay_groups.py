"""Dual-phase replay: grouping and intersection."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import RefusedError
from holdfast.policies.diagnose.replay_groups import ReplayOutcome, ReplayPlan, plan, suspects

SHAPES = st.integers(1, 300).flatmap(lambda m: st.tuples(st.just(m), st.integers(1, min(m, 24))))


def failing(replay: ReplayPlan, faulty: set[int]) -> tuple[list[int], list[int]]:
    """Indices of the groups in which a faulty machine makes the replay fail."""
    horizontal = [i for i, group in enumerate(replay.horizontal) if faulty & set(group)]
    vertical = [i for i, group in enumerate(replay.vertical) if faulty & set(group)]
    return horizontal, vertical


@given(SHAPES)
def test_each_machine_is_in_exactly_one_group_per_phase(shape: tuple[int, int]) -> None:
    """Also when the machines do not factor."""
    machines, pp = shape
    replay = plan(machines, pp)
    for groups in (replay.horizontal, replay.vertical):
        assert sorted(x for group in groups for x in group) == list(range(machines))
        assert all(groups)


@given(SHAPES)
def test_groups_follow_the_paper(shape: tuple[int, int]) -> None:
    """Horizontal x // m, vertical x mod n, m = k * pp."""
    machines, pp = shape
    replay = plan(machines, pp)
    assert replay.m % pp == 0
    assert all(x // replay.m == a for a, group in enumerate(replay.horizontal) for x in group)
    assert all(x % replay.n == b for b, group in enumerate(replay.vertical) for x in group)


@given(SHAPES, st.data())
def test_a_single_faulty_machine_is_uniquely_found_when_m_is_at_most_n(
    shape: tuple[int, int], data: st.DataObject
) -> None:
    """The point of the method; otherwise at most ceil(m / n) suspects, the faulty one among them."""
    replay = plan(*shape)
    faulty = data.draw(st.integers(0, replay.machines - 1))
    verdict = suspects(replay, *failing(replay, {faulty}))
    if len(replay.horizontal) == len(replay.vertical) == 1:
        assert verdict.outcome is ReplayOutcome.INSEPARABLE
        return
    assert faulty in verdict.suspects
    if replay.unique:
        assert verdict.suspects == (faulty,)
        assert verdict.outcome is ReplayOutcome.FOUND
    else:
        assert len(verdict.suspects) <= -(-replay.m // replay.n)


@given(st.integers(1, 2000))
def test_without_pipelines_every_machine_count_gives_a_unique_plan(machines: int) -> None:
    """m is near the root of the count, and no group is a lone machine unless it must be."""
    replay = plan(machines)
    assert replay.unique
    assert replay.m > 1 or machines <= 2


@given(SHAPES, st.data())
def test_all_faulty_machines_are_suspected_or_the_cause_is_common(
    shape: tuple[int, int], data: st.DataObject
) -> None:
    """Several faults: no guilty machine is left out."""
    replay = plan(*shape)
    faulty = data.draw(st.sets(st.integers(0, replay.machines - 1), min_size=1, max_size=5))
    verdict = suspects(replay, *failing(replay, faulty))
    if verdict.outcome not in (ReplayOutcome.COMMON_CAUSE, ReplayOutcome.INSEPARABLE):
        assert faulty <= set(verdict.suspects)
        assert verdict.outcome is not ReplayOutcome.FLAKY


def test_the_papers_shape() -> None:
    """24 machines, pipelines over 2: m = 4 divides, groups of 4 and 6 vertical ones."""
    replay = plan(24, 2)
    assert (replay.m, replay.n, replay.unique) == (4, 6, True)
    assert replay.horizontal[1] == (4, 5, 6, 7)
    assert replay.vertical[1] == (1, 7, 13, 19)
    assert suspects(replay, [3], [1]).suspects == (13,)


def test_four_machines_of_the_demo() -> None:
    """Two by two."""
    replay = plan(4)
    assert replay.horizontal == ((0, 1), (2, 3))
    assert replay.vertical == ((0, 2), (1, 3))
    verdict = suspects(replay, [1], [0])
    assert verdict.suspects == (2,)
    assert verdict.confidence > 0.9


def test_nothing_failed_is_not_reproduced() -> None:
    """No suspect, and a name for it."""
    verdict = suspects(plan(6), [], [])
    assert (verdict.outcome, verdict.suspects, verdict.confidence) == (ReplayOutcome.NOT_REPRODUCED, (), 0.0)


def test_everything_failed_is_a_common_cause() -> None:
    """Code or data, not six machines."""
    replay = plan(6)
    verdict = suspects(replay, range(len(replay.horizontal)), range(len(replay.vertical)))
    assert (verdict.outcome, verdict.suspects) == (ReplayOutcome.COMMON_CAUSE, ())


@pytest.mark.parametrize(("h", "v"), [([0], []), ([], [1])])
def test_only_one_phase_failed_is_flaky(h: list[int], v: list[int]) -> None:
    """The fault came and went."""
    verdict = suspects(plan(6), h, v)
    assert verdict.outcome is ReplayOutcome.FLAKY
    assert verdict.suspects == ()


def test_groups_that_share_no_machine_are_flaky() -> None:
    """Seven machines: the last row holds only machine 6, which lies in column 0."""
    replay = plan(7)
    assert (replay.m, replay.n) == (3, 3)
    assert replay.horizontal[2] == (6,)
    assert suspects(replay, [2], [1]).outcome is ReplayOutcome.FLAKY
    assert suspects(replay, [2], [0]).suspects == (6,)


def test_two_machines_in_one_group_are_distinguished_exactly() -> None:
    """One failing row, two failing columns."""
    replay = plan(9)
    verdict = suspects(replay, *failing(replay, {3, 4}))
    assert (verdict.outcome, verdict.suspects) == (ReplayOutcome.SEVERAL, (3, 4))
    assert verdict.confidence == 0.8


def test_two_machines_in_different_groups_leave_innocent_corners() -> None:
    """Less certain, as its confidence shows."""
    replay = plan(9)
    verdict = suspects(replay, *failing(replay, {0, 4}))
    assert verdict.outcome is ReplayOutcome.SEVERAL
    assert set(verdict.suspects) == {0, 1, 3, 4}
    assert verdict.confidence == 0.5


def test_long_pipelines_narrow_only() -> None:
    """pp = 4 over 8 machines: m = 4 > n = 2, two suspects remain."""
    replay = plan(8, 4)
    assert not replay.unique
    verdict = suspects(replay, *failing(replay, {5}))
    assert (verdict.outcome, verdict.suspects) == (ReplayOutcome.NARROWED, (5, 7))


@pytest.mark.parametrize("machines", [1, 2])
def test_too_few_groups_cannot_separate_machine_from_code(machines: int) -> None:
    """A single pipeline has nothing to compare with."""
    replay = plan(machines, machines)
    assert suspects(replay, [0], [0]).outcome is ReplayOutcome.INSEPARABLE


@pytest.mark.parametrize(("machines", "pp"), [(0, 1), (3, 4), (4, 0)])
def test_impossible_plans_are_refused(machines: int, pp: int) -> None:
    """Names the values."""
    with pytest.raises(RefusedError, match=f"machines = {machines}, pp = {pp}"):
        plan(machines, pp)


@pytest.mark.parametrize(("h", "v"), [([9], [0]), ([0], [-1])])
def test_unknown_groups_are_refused(h: list[int], v: list[int]) -> None:
    """An index off the plan is a mistake of the caller."""
    with pytest.raises(RefusedError, match="expected 0 to"):
        suspects(plan(4), h, v)

"""Placement of shards in the memory of peers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import RefusedError
from holdfast.models.job import Parallelism
from holdfast.policies.diagnose.groups import groups, slots, stage_of
from holdfast.policies.restore.placement import backups


@st.composite
def shapes(draw: st.DrawFn) -> tuple[int, int, Parallelism]:
    """Machines, ranks per machine and a parallelism that divides them."""
    tp, pp, dp = draw(st.sampled_from([1, 2, 4, 8])), draw(st.integers(1, 6)), draw(st.integers(1, 8))
    world = tp * pp * dp
    per = draw(st.sampled_from([per for per in (1, 2, 4, 8) if world % per == 0]))
    return world // per, per, Parallelism(tp=tp, pp=pp)


def inside(machines: int, per: int, parallelism: Parallelism, mapping: dict[int, int]) -> list[int]:
    """Slots whose copy lies on a machine that one of their ranks shares a group with."""
    touched = [slots(group.ranks, per) for group in groups(machines * per, parallelism)]
    return [slot for slot, peer in mapping.items() if any({slot, peer} <= group for group in touched)]


@given(shapes())
def test_a_bijection_without_fixed_points(shape: tuple[int, int, Parallelism]) -> None:
    """Every machine keeps exactly one other's copy, never its own."""
    machines, per, parallelism = shape
    backup = backups(machines, per, parallelism)
    if machines == 1:
        assert backup.mapping == {}
        return
    assert sorted(backup.mapping) == sorted(backup.mapping.values()) == list(range(machines))
    assert all(slot != peer for slot, peer in backup.mapping.items())


@given(shapes())
def test_crosses_groups_is_true_only_when_it_is(shape: tuple[int, int, Parallelism]) -> None:
    """Evicting any parallel group of a rank leaves its copy alive; otherwise the answer states so."""
    machines, per, parallelism = shape
    backup = backups(machines, per, parallelism)
    within = inside(machines, per, parallelism, backup.mapping)
    assert backup.crosses_groups == (not within and machines > 1)


@given(st.integers(2, 8), st.integers(2, 8))
def test_a_grid_of_pipeline_and_data_groups_can_always_be_crossed(pp: int, dp: int) -> None:
    """One machine per (stage, replica): another stage of another replica keeps the copy."""
    backup = backups(pp * dp, 8, Parallelism(tp=8, pp=pp))
    assert backup.crosses_groups


def test_plain_data_parallelism_falls_back_to_the_neighbour_and_says_so() -> None:
    """One kind of group: nothing lies outside it."""
    backup = backups(4, 2, Parallelism())
    assert backup.mapping == {0: 1, 1: 2, 2: 3, 3: 0}
    assert not backup.crosses_groups
    assert "neighbour" in backup.reason


def test_a_single_machine_has_no_peer() -> None:
    """Reported, not hidden."""
    backup = backups(1, 8, Parallelism())
    assert backup.mapping == {}
    assert "no peer" in backup.reason


def test_what_can_cross_does_when_not_all_can() -> None:
    """The assignment keeps copies inside groups as few as possible."""
    # Two ranks per machine, TP over 3 ranks: groups straddle machines unevenly.
    backup = backups(6, 2, Parallelism(tp=3, pp=2))
    assert len(inside(6, 2, Parallelism(tp=3, pp=2), backup.mapping)) < 6 or not backup.crosses_groups


def test_the_design_size_is_placed() -> None:
    """1,200 machines of 8 ranks."""
    assert backups(1200, 8, Parallelism(tp=8, pp=8)).crosses_groups
    assert not backups(1200, 8, Parallelism()).crosses_groups


@pytest.mark.parametrize(("machines", "per"), [(0, 2), (2, 0)])
def test_impossible_counts_are_refused(machines: int, per: int) -> None:
    """Names the values."""
    with pytest.raises(RefusedError, match=f"machines = {machines}"):
        backups(machines, per, Parallelism())


@given(shapes())
def test_groups_partition_the_world_for_each_kind(shape: tuple[int, int, Parallelism]) -> None:
    """Each rank is in one group of each kind that has more than one rank, in its own stage for TP and DP."""
    machines, per, parallelism = shape
    world = machines * per
    found = groups(world, parallelism)
    sizes = {"tp": parallelism.tp, "pp": parallelism.pp, "dp": parallelism.dp(world)}
    for kind, group_size in sizes.items():
        ranks = sorted(rank for group in found if group.kind == kind for rank in group.ranks)
        assert ranks == (list(range(world)) if group_size > 1 else [])
    for group in found:
        stages = {stage_of(rank, world, parallelism) for rank in group.ranks}
        assert len(stages) == (parallelism.pp if group.kind == "pp" else 1)


def test_group_names_read_well() -> None:
    """Used in reports."""
    assert [group.name for group in groups(4, Parallelism(tp=2))] == ["tp 0", "tp 1", "dp 0", "dp 1"]

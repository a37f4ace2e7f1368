"""Shards in memory that another number of ranks saved: the readers of each, and when S3 is read instead."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.models.checkpoint import RemoteCheckpoint, Shard, Tier
from holdfast.policies.restore.restore_plan import choose

SAVED = 4


def shard(rank: int, machine: str, tier: Tier = Tier.MEMORY, step: int = 9, size: int = SAVED) -> Shard:
    return Shard(
        job="gpt",
        rank=rank,
        step=step,
        epoch=1,
        machine=machine,
        tier=tier,
        nbytes=1,
        digest="d",
        world_size=size,
    )


def remote(step: int) -> RemoteCheckpoint:
    return RemoteCheckpoint(job="gpt", step=step, epoch=1, world_size=SAVED, key=f"gpt/{step}")


OWN = [shard(rank, f"m{rank}") for rank in range(SAVED)]
COPIES = [shard(rank, f"m{(rank + 1) % SAVED}", Tier.PEER) for rank in range(SAVED)]


def test_a_lost_machines_shard_is_read_where_its_copy_lies() -> None:
    """Four machines of one rank each; m1 is lost, and its copy is on m2."""
    homes = {0: "m0", 1: "m2", 2: "m3"}
    held = [each for each in OWN + COPIES if each.machine != "m1"]
    plan = choose(held, [remote(5)], 3, homes, other_sizes=True)
    assert (plan.step, plan.tier, plan.saved_by) == (9, Tier.MEMORY, SAVED)
    assert {(each.rank, each.machine, each.tier, each.read_by) for each in plan.sources} == {
        (0, "m0", Tier.MEMORY, 0),
        (1, "m2", Tier.PEER, 1),
        (2, "m2", Tier.MEMORY, 1),
        (3, "m3", Tier.MEMORY, 2),
    }


def test_a_machine_that_leaves_is_asked_for_what_it_alone_has() -> None:
    """No rank reads there: the rank with the fewest shards fetches it."""
    plan = choose(OWN, [], 2, {0: "m0", 1: "m1"}, other_sizes=True)
    assert [(each.rank, each.machine, each.read_by) for each in plan.sources] == [
        (0, "m0", 0),
        (1, "m1", 1),
        (2, "m2", 0),
        (3, "m3", 1),
    ]


def test_more_ranks_have_nothing_to_read() -> None:
    plan = choose(OWN, [], 6, {rank: f"m{rank}" for rank in range(6)}, other_sizes=True)
    assert [each.read_by for each in plan.sources] == [0, 1, 2, 3]
    assert plan.saved_by == SAVED


def test_without_all_shards_s3_is_read() -> None:
    """And the plan names the missing ones."""
    plan = choose(OWN[:3], [remote(5)], 3, {}, other_sizes=True)
    assert (plan.step, plan.tier, plan.saved_by) == (5, Tier.S3, 0)
    assert "lacks rank 3 of these" in plan.skipped[0].reason


def test_where_they_would_be_overwritten_they_are_not_used() -> None:
    """A single buffer: the first save of the new epoch may destroy them before all ranks have one."""
    assert choose(OWN, [remote(5)], 3, {}).tier is Tier.S3


def test_the_same_number_of_ranks_goes_before() -> None:
    """As after a start at the new size that failed before its first step: the step is there at both sizes."""
    now = [shard(rank, f"m{rank}", size=3) for rank in range(3)]
    plan = choose([*OWN, *now], [], 3, {rank: f"m{rank}" for rank in range(3)}, other_sizes=True)
    assert (plan.saved_by, len(plan.sources)) == (0, 3)


@given(
    held=st.sets(st.tuples(st.integers(0, SAVED - 1), st.integers(0, 5)), min_size=1),
    size=st.sampled_from([1, 2, 3, 5, 6]),
)
def test_every_shard_is_read_once_and_by_a_rank_where_it_lies_if_one_runs_there(
    held: set[tuple[int, int]], size: int
) -> None:
    homes = {rank: f"m{rank}" for rank in range(size)}
    shards = [shard(rank, f"m{machine}") for rank, machine in sorted(held)]
    plan = choose(shards, [], size, homes, other_sizes=True)
    if {rank for rank, _ in held} != set(range(SAVED)):
        assert plan.tier is None
        return
    assert sorted(each.rank for each in plan.sources) == list(range(SAVED))
    for each in plan.sources:
        assert each.read_by in homes
        near = {machine for rank, machine in held if rank == each.rank and machine < size}
        assert not near or homes[each.read_by] == each.machine

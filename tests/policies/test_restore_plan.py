"""From which step, and from where."""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from holdfast.models.checkpoint import RemoteCheckpoint, Shard, Tier
from holdfast.policies.restore_plan import choose

HOMES = {rank: f"m{rank // 2}" for rank in range(4)}


def shard(
    rank: int, step: int, machine: str | None = None, tier: Tier = Tier.MEMORY, epoch: int = 1
) -> Shard:
    return Shard(
        job="gpt",
        rank=rank,
        step=step,
        epoch=epoch,
        machine=machine or HOMES[rank],
        tier=tier,
        nbytes=1,
        digest="d",
    )


def own(step: int, ranks: Iterable[int] = range(4), epoch: int = 1) -> list[Shard]:
    return [shard(rank, step, epoch=epoch) for rank in ranks]


def peer(step: int, ranks: Iterable[int] = range(4), epoch: int = 1) -> list[Shard]:
    """Copies on the other machine."""
    return [shard(r, step, f"m{1 - r // 2}", Tier.PEER, epoch) for r in ranks]


def remote(step: int, suspect: bool = False, world_size: int = 4) -> RemoteCheckpoint:
    return RemoteCheckpoint(
        job="gpt", step=step, epoch=1, world_size=world_size, key=f"gpt/{step}", suspect=suspect
    )


def test_nothing_lost_restores_every_rank_from_its_own_machine() -> None:
    """The cheapest case: a process died."""
    plan = choose(own(9) + own(8) + peer(9) + peer(8), [remote(5)], 4, HOMES)
    assert (plan.step, plan.tier) == (9, Tier.MEMORY)
    assert [(s.rank, s.machine, s.tier) for s in plan.sources] == [
        (r, HOMES[r], Tier.MEMORY) for r in range(4)
    ]
    assert plan.reasons


def test_a_lost_machines_ranks_come_from_the_peer() -> None:
    """The standby that took its slot has nothing."""
    homes = {**HOMES, 0: "m7", 1: "m7"}
    plan = choose(own(9, (2, 3)) + own(8, (2, 3)) + peer(9, (0, 1)), [remote(5)], 4, homes)
    assert plan.step == 9
    assert [(s.machine, s.tier) for s in plan.sources[:2]] == [("m1", Tier.PEER)] * 2
    assert any("fetched" in reason for reason in plan.reasons)


def test_a_copy_on_the_ranks_own_machine_is_cheaper_than_the_writers_memory_elsewhere() -> None:
    """After a swap of slots the bytes may lie right here."""
    homes = {0: "m1"}
    plan = choose([shard(0, 5, "m0"), shard(0, 5, "m1", Tier.PEER)], [], 1, homes)
    assert (plan.sources[0].machine, plan.sources[0].tier) == ("m1", Tier.PEER)
    far = choose([shard(0, 5, "m2", Tier.PEER), shard(0, 5, "m3")], [], 1, homes)
    assert far.sources[0].machine == "m3"


def test_the_newest_step_that_all_ranks_have_wins() -> None:
    """One rank was slower: the step before."""
    plan = choose(own(9, (0, 1, 2)) + own(8), [], 4, HOMES)
    assert plan.step == 8


def test_a_newer_checkpoint_in_s3_beats_older_memory() -> None:
    """No step is lost that need not be."""
    plan = choose(own(4), [remote(6), remote(2)], 4, HOMES)
    assert (plan.step, plan.tier) == (6, Tier.S3)
    assert plan.remote == remote(6)
    assert any("newer than step 4" in reason for reason in plan.reasons)


def test_memory_beats_s3_at_the_same_step() -> None:
    """S3 is slower."""
    assert choose(own(6), [remote(6)], 4, HOMES).tier is Tier.MEMORY


def test_without_a_common_step_s3_is_used_and_the_gap_named() -> None:
    """A machine and its peer were lost together."""
    plan = choose(own(9, (0, 1)), [remote(5)], 4, HOMES)
    assert plan.step == 5
    assert any("lacks rank 2, 3" in reason for reason in plan.reasons)


def test_nothing_anywhere_starts_from_scratch() -> None:
    """Says so."""
    plan = choose([], [], 4, HOMES)
    assert (plan.step, plan.tier, plan.remote) == (0, None, None)
    assert any("from scratch" in reason for reason in plan.reasons)


def test_the_bound_holds_for_memory_and_s3() -> None:
    """After NaN at step 8 only earlier steps count."""
    plan = choose(own(9) + own(8), [remote(8), remote(5)], 4, HOMES, 7)
    assert (plan.step, plan.tier) == (5, Tier.S3)
    assert choose(own(9) + own(8), [], 4, HOMES, 8).step == 8
    assert choose(own(9), [remote(8)], 4, HOMES, 0).tier is None


def test_suspect_checkpoints_are_left_out_and_mentioned() -> None:
    """Marked, not deleted."""
    plan = choose([], [remote(8, suspect=True), remote(5)], 4, HOMES)
    assert plan.step == 5
    assert any("suspect" in reason and "8" in reason for reason in plan.reasons)


def test_epochs_are_never_mixed_within_a_step() -> None:
    """The same step computed twice need not be the same bytes."""
    plan = choose(own(9, (0, 1), epoch=1) + own(9, (2, 3), epoch=2) + own(8, epoch=1), [], 4, HOMES)
    assert plan.step == 8


def test_a_newer_epoch_goes_before_an_older_one() -> None:
    """Older history beyond the newer epoch's start was given up."""
    assert choose(own(41, epoch=2) + own(49, epoch=1), [], 4, HOMES).step == 41


def test_a_checkpoint_of_another_world_size_is_used_and_mentioned() -> None:
    """The stock format loads at any parallelism."""
    plan = choose([], [remote(5, world_size=8)], 4, HOMES)
    assert plan.step == 5
    assert any("8 ranks" in reason for reason in plan.reasons)


def test_shards_of_ranks_beyond_the_world_are_ignored() -> None:
    """A smaller job than the one that saved."""
    assert len(choose(own(9), [], 2, HOMES).sources) == 2


@given(
    st.sets(
        st.tuples(st.integers(0, 3), st.integers(1, 6), st.sampled_from(["m0", "m1", "m2"]), st.booleans())
    ),
    st.sets(st.tuples(st.integers(1, 6), st.booleans())),
    st.none() | st.integers(0, 6),
)
def test_the_answer_is_the_newest_reachable_step_within_the_bound(
    held: set[tuple[int, int, str, bool]], saved: set[tuple[int, bool]], bound: int | None
) -> None:
    """Against a brute-force search; every source really holds what the plan says."""
    shards = [shard(r, s, m, Tier.MEMORY if mine else Tier.PEER) for r, s, m, mine in held]
    plan = choose(shards, [remote(s, bad) for s, bad in saved], 4, HOMES, bound)
    top = 6 if bound is None else bound
    memory = [s for s in range(1, top + 1) if {r for r, step, _, _ in held if step == s} == {0, 1, 2, 3}]
    good = [s for s, bad in saved if not bad and s <= top]
    assert plan.step == max([0, *memory, *good])
    if plan.tier is Tier.MEMORY:
        there = {(s.rank, s.machine, s.tier) for s in shards if s.step == plan.step}
        assert {(s.rank, s.machine, s.tier) for s in plan.sources} <= there
        assert [s.rank for s in plan.sources] == [0, 1, 2, 3]

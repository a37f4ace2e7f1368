"""The restore plan: the step, and the source of each shard."""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from holdfast.models.checkpoint import RemoteCheckpoint, Shard, Tier
from holdfast.policies.restore.restore_plan import choose

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
    """As the plan states."""
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
    """Against a brute-force search; every source really holds the shards in the plan."""
    shards = [shard(r, s, m, Tier.MEMORY if mine else Tier.PEER) for r, s, m, mine in held]
    plan = choose(shards, [remote(s, bad) for s, bad in saved], 4, HOMES, bound)
    top = 6 if bound is None else bound
    memory = [s for s in range(1, top + 1) if {r for r, step, _, _ in held if step == s} == {0, 1, 2, 3}]
    good = [s for s, bad in saved if not bad and s <= top]
    assert plan.step == max([0, *memory, *good])
    if plan.tier is Tier.MEMORY:
        there = {(s.rank, s.machine, s.tier) for s in shards if s.step == plan.step}
        assert {(s.rank, s.machine, s.tier) for s in plan.sources if s.tier is not Tier.S3} <= there
        assert [s.rank for s in plan.sources] == [0, 1, 2, 3]


def test_a_rank_whose_machines_lost_it_reads_s3_at_the_same_step() -> None:
    """The others keep their memory: only the rank that lacks its shard pays for S3."""
    plan = choose(own(6, (0, 1, 2)), [remote(6), remote(4)], 4, HOMES)
    assert (plan.step, plan.tier, plan.remote) == (6, Tier.MEMORY, remote(6))
    assert [source.tier for source in plan.sources] == [Tier.MEMORY] * 3 + [Tier.S3]
    assert "no machine has its shard" in plan.sources[3].reason


def test_memory_anywhere_goes_before_the_own_disk_and_disk_before_s3() -> None:
    """The order of cost, with what comes next if a source is refused."""
    held = [shard(0, 5, "m0", Tier.DISK), shard(0, 5, "m3", Tier.PEER), shard(0, 5, "m3", Tier.DISK)]
    plan = choose(held, [remote(5, world_size=1)], 1, {0: "m0"})
    order = [(each.machine, each.tier) for each in (*plan.sources, *plan.fallbacks)]
    assert order == [("m3", Tier.PEER), ("m0", Tier.DISK), ("m3", Tier.DISK), ("", Tier.S3)]
    assert all(each.reason for each in (*plan.sources, *plan.fallbacks))


def test_what_lies_on_disks_only_is_named() -> None:
    """Not in memory: the agents were restarted."""
    plan = choose([*own(5, (0, 1, 2)), shard(3, 5, "m3", Tier.DISK)], [], 4, HOMES)
    assert plan.tier is Tier.MEMORY
    assert "step 5 of epoch 1 is on machines for all 4 ranks" in plan.reasons
    assert "from a disk, in no machine's memory: rank 3" in plan.reasons


def test_shards_of_another_world_size_are_not_mistaken_for_a_whole_step() -> None:
    """Two ranks of a job of four are not a job of two."""
    wide = [each.model_copy(update={"world_size": 4}) for each in own(9)]
    plan = choose(wide, [remote(5)], 2, HOMES)
    assert (plan.step, plan.tier) == (5, Tier.S3)
    assert [(each.step, "4 ranks, not 2" in each.reason) for each in plan.skipped] == [(9, True)]


def test_every_skipped_step_and_every_source_says_why() -> None:
    """Newest first: beyond the bound, incomplete, suspect."""
    plan = choose(
        own(9) + own(7, (0,)) + own(4), [remote(6, suspect=True)], 4, HOMES, bound=8, refused=["rank 0"]
    )
    assert [(each.step, each.reason) for each in plan.skipped] == [
        (9, "beyond the bound: only steps up to 8 may be restored"),
        (7, "lacks rank 1, 2, 3; not in S3"),
        (6, "suspect in S3"),
    ]
    assert plan.step == 4
    assert plan.reasons[0] == "refused: rank 0"
    assert all(source.reason for source in plan.sources)


_TIERS = st.sampled_from([Tier.MEMORY, Tier.PEER, Tier.DISK])


@given(
    st.sets(st.tuples(st.integers(0, 3), st.integers(1, 5), st.sampled_from(["m0", "m1", "m2"]), _TIERS)),
    st.sets(st.tuples(st.integers(1, 5), st.booleans())),
    st.none() | st.integers(0, 5),
)
def test_each_rank_takes_its_cheapest_source_and_every_skipped_step_has_its_reason(
    held: set[tuple[int, int, str, Tier]], saved: set[tuple[int, bool]], bound: int | None
) -> None:
    """Against brute force: step, order of cost per rank, and a reason for every newer step that is known of."""
    shards = [shard(r, s, m, tier) for r, s, m, tier in held]
    plan = choose(shards, [remote(s, bad) for s, bad in saved], 4, HOMES, bound)
    known = {s for _, s, _, _ in held} | {s for s, _ in saved}
    assert {each.step for each in plan.skipped} == {s for s in known if s > plan.step}
    assert all(each.reason for each in plan.skipped)
    in_s3 = (plan.step, False) in saved
    if plan.tier is not Tier.MEMORY:
        return
    assert [s.rank for s in plan.sources] == [0, 1, 2, 3]
    for rank in range(4):
        mine = {(m, tier) for r, s, m, tier in held if (r, s) == (rank, plan.step)}
        listed = [s for s in (*plan.sources, *plan.fallbacks) if s.rank == rank]
        assert {(s.machine, s.tier) for s in listed} == mine | ({("", Tier.S3)} if in_s3 else set())
        cost = [(s.tier is Tier.S3, s.tier is Tier.DISK, s.machine != HOMES[rank]) for s in listed]
        assert cost == sorted(cost)


def test_planning_for_ten_thousand_ranks_is_linear() -> None:
    """Work grows with the shards: 10,240 ranks, three steps, three copies; a quadratic search would not end."""
    homes = {rank: f"m{rank // 8}" for rank in range(10_240)}
    held = [
        shard(rank, step, f"m{(rank // 8 + shift) % 1_280}", tier)
        for rank in homes
        for step in (7, 8, 9)
        for shift, tier in ((0, Tier.MEMORY), (1, Tier.PEER), (0, Tier.DISK))
        if (rank, step) != (5_000, 9)
    ]
    plan = choose(held, [remote(3)], 10_240, homes)
    assert (plan.step, len(plan.sources), len(plan.fallbacks)) == (8, 10_240, 2 * 10_240)


def test_shards_of_one_step_by_other_calls_are_not_mixed() -> None:
    """A rank that counts steps otherwise saved that step at another call: an older step that fits wins."""
    ahead = [each.model_copy(update={"number": each.step - (each.rank == 3)}) for each in own(9) + own(8)]
    older = [each.model_copy(update={"number": 7}) for each in own(7)]
    plan = choose(ahead + older, [], 4, HOMES)
    assert plan.step == 7
    assert [each.step for each in plan.skipped] == [9, 9, 8, 8]


def test_a_checkpoint_in_s3_goes_with_the_shards_that_all_ranks_have() -> None:
    """Its manifest has no number: a rank that lacks its shard reads S3, unless other calls' shards are there too."""
    some = [each.model_copy(update={"number": 4}) for each in own(9, (0, 1, 2))]
    assert [each.tier for each in choose(some, [remote(9)], 4, HOMES).sources][3] is Tier.S3
    odd = [each.model_copy(update={"number": 3}) for each in own(9, (3,))]
    assert choose(some + odd, [remote(9)], 4, HOMES).tier is Tier.S3

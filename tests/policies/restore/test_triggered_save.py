"""The step that is saved when a rank or machine dies, and the ranks that save it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.models.checkpoint import RemoteCheckpoint, Shard, Tier
from holdfast.policies.restore.triggered_save import choose


def shard(rank: int, step: int, machine: str, tier: Tier = Tier.MEMORY, epoch: int = 1) -> Shard:
    return Shard(
        job="gpt", rank=rank, step=step, epoch=epoch, machine=machine, tier=tier, nbytes=1, digest="d"
    )


def in_s3(step: int, suspect: bool = False) -> RemoteCheckpoint:
    return RemoteCheckpoint(job="gpt", step=step, epoch=1, world_size=2, key=f"{step}/", suspect=suspect)


PAIR = [
    *(shard(0, step, "m0") for step in (40, 41)),
    *(shard(1, step, "m1") for step in (40, 41)),
    *(shard(0, step, "m1", Tier.PEER) for step in (40, 41)),
    *(shard(1, 40, "m0", Tier.PEER) for _ in range(1)),
]


def test_every_machine_uploads_what_its_ranks_wrote() -> None:
    """The newest step that all have."""
    save = choose(PAIR, [in_s3(20)], 2)
    assert save is not None
    assert (save.step, save.epoch, save.uploads) == (41, 1, {"m0": (0,), "m1": (1,)})


def test_a_dead_machines_ranks_are_uploaded_by_its_peer() -> None:
    """All from one machine, if that is what is left."""
    save = choose([each for each in PAIR if each.machine == "m1"], [], 2)
    assert save is not None
    assert (save.step, save.uploads) == (41, {"m1": (0, 1)})


def test_an_older_step_is_taken_when_the_newest_is_not_whole() -> None:
    """Rank 1's copy is one step behind."""
    save = choose([each for each in PAIR if each.machine == "m0"], [], 2)
    assert save is not None
    assert (save.step, save.uploads) == (40, {"m0": (0, 1)})


def test_a_part_of_what_more_ranks_saved_is_no_checkpoint() -> None:
    """A job shrank from four ranks to two and saved nothing since: the first two shards of four are not the state."""
    of_four = [each.model_copy(update={"world_size": 4}) for each in PAIR]
    assert choose(of_four, [], 2) is None
    others = [shard(rank, 40, "m2").model_copy(update={"world_size": 4}) for rank in (2, 3)]
    save = choose([*of_four, *others], [], 2)
    assert save is not None
    assert (save.step, save.world_size) == (40, 4), "all four are there: it is saved as what four ranks saved"


def test_nothing_is_saved_twice_or_without_need() -> None:
    """Not what lies there, not what cannot be trusted, not halves; a suspect checkpoint counts as none."""
    assert choose(PAIR, [in_s3(41)], 2) is None
    assert choose(PAIR, [in_s3(20)], 2, bound=39) is None
    assert choose(PAIR, [], 3) is None
    assert choose([], [], 2) is None
    assert choose(PAIR, [in_s3(41, suspect=True)], 2) is not None
    assert choose([shard(0, 7, "m0"), shard(1, 7, "m1", epoch=2)], [], 2) is None


@given(
    st.lists(
        st.builds(
            shard,
            st.integers(0, 3),
            st.integers(1, 6),
            st.sampled_from(["m0", "m1", "m2"]),
            st.sampled_from([Tier.MEMORY, Tier.PEER]),
            st.integers(1, 2),
        ),
        max_size=40,
    ),
    st.integers(0, 6),
)
def test_every_rank_is_uploaded_once_by_a_machine_that_has_it(shards: list[Shard], newest: int) -> None:
    """Whatever is left where."""
    save = choose(shards, [in_s3(newest)] if newest else [], 3)
    if save is None:
        return
    assert sorted(rank for ranks in save.uploads.values() for rank in ranks) == [0, 1, 2]
    assert save.step > newest
    for machine, ranks in save.uploads.items():
        for rank in ranks:
            assert any(
                (each.rank, each.step, each.epoch, each.machine) == (rank, save.step, save.epoch, machine)
                for each in shards
            )

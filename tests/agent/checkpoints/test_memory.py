from __future__ import annotations

import errno
from pathlib import Path

import pytest

from holdfast.agent.checkpoints.memory import Memory, base_job
from holdfast.errors import CheckpointError, DamagedError
from holdfast.models.checkpoint import FirstTier, Tier
from holdfast.storage.checkpoints.save import buffers, slot_files
from tests.agent.shards import write_shard


@pytest.fixture
def memory(tmp_path: Path) -> Memory:
    return Memory("m0", tmp_path)


def test_own_and_peer_shards_are_distinguished(memory: Memory) -> None:
    """The restore policy prefers what is already in place."""
    write_shard(memory.own("toy"), rank=0, step=3)
    write_shard(memory.peer("toy"), rank=4, step=3)
    assert {(shard.rank, shard.tier) for shard in memory.shards()} == {(0, Tier.MEMORY), (4, Tier.PEER)}


def test_shards_of_one_step_of_one_job_are_listed_alone(memory: Memory) -> None:
    """While all ranks wait for it, nothing else is looked for."""
    for step in (3, 4):
        write_shard(memory.own("toy"), rank=0, step=step)
        write_shard(memory.peer("toy"), rank=4, step=step)
    write_shard(memory.own("other"), rank=1, step=4, job="other")
    listed = memory.shards(("toy", 4))
    assert {(shard.job, shard.rank, shard.step, shard.tier) for shard in listed} == {
        ("toy", 0, 4, Tier.MEMORY),
        ("toy", 4, 4, Tier.PEER),
    }
    assert memory.shards(("toy", 5)) == ()


def test_incomplete_shards_do_not_exist(memory: Memory) -> None:
    """A shard that is still being written may never be restored."""
    path = write_shard(memory.own("toy"))
    with slot_files.create(path, path.stat().st_size) as buffer:
        buffers.begin(buffer)
    assert memory.shards() == ()
    assert memory.find("toy", 0, 1) is None


def test_what_a_killed_agent_was_copying_to_the_disk_is_removed(tmp_path: Path) -> None:
    """It counts for no limit, and only the same rank on the same machine would ever overwrite it; copies stay."""
    memory = Memory("m0", tmp_path / "shm", tmp_path / "ckpt")
    kept = write_shard(memory.disk("toy"), rank=0, step=3)
    left = kept.with_suffix(".part")
    left.write_bytes(b"half of it")
    again = Memory("m0", tmp_path / "shm", tmp_path / "ckpt")
    assert not left.exists()
    assert [shard.step for shard in again.shards()] == [3]


def test_an_agent_starts_beside_a_disk_that_became_read_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that it cannot remove stays: the agent is there to report the disk."""
    left = Memory("m0", tmp_path / "shm", tmp_path / "ckpt").disk("toy") / "0.part"
    left.parent.mkdir(parents=True, exist_ok=True)
    left.write_bytes(b"half of it")

    def refused(path: Path, missing_ok: bool = False) -> None:
        raise OSError(errno.EROFS, "Read-only file system", str(path))

    monkeypatch.setattr(Path, "unlink", refused)
    assert Memory("m0", tmp_path / "shm", tmp_path / "ckpt").shards() == ()
    assert left.exists()


def test_of_two_with_the_same_step_the_newer_epoch_counts(memory: Memory) -> None:
    """The same step may have been done twice; the later one is the job's history."""
    write_shard(memory.own("toy"), step=3, epoch=1)
    newer = write_shard(memory.peer("toy"), step=3, epoch=2)
    assert memory.require("toy", 0, 3)[0] == newer


def test_resuming_forgets_later_steps(memory: Memory) -> None:
    """Steps beyond the restored one belong to no future, on either side."""
    for folder in (memory.own("toy"), memory.peer("toy")):
        write_shard(folder, step=4)
        write_shard(folder, step=5)
    memory.resume_after("toy", 4)
    assert {shard.step for shard in memory.shards()} == {4}


def test_forget_drops_one_job_only(memory: Memory) -> None:
    """Another job's shards stay."""
    write_shard(memory.own("toy"))
    write_shard(memory.own("other"), job="other")
    memory.forget("toy")
    assert {shard.job for shard in memory.shards()} == {"other"}


def test_require_says_what_there_is(memory: Memory) -> None:
    """A refused restore names the steps that could be restored."""
    write_shard(memory.own("toy"), step=7)
    with pytest.raises(CheckpointError, match=r"step 8 \(has steps \[7\]\)"):
        memory.require("toy", 0, 8)


def test_a_replay_uses_its_jobs_state() -> None:
    """Replays are named after the job and their group."""
    assert base_job("toy~h0") == base_job("toy") == "toy"


def test_a_job_with_its_first_tier_on_disk(tmp_path: Path) -> None:
    """Its folders lie there, an agent after this one finds them, and forgetting the job empties them."""
    (tmp_path / "disk").mkdir()
    nvme = tmp_path / "disk" / "home" / "m0"
    memory = Memory("m0", tmp_path / "shm", nvme=nvme)
    memory.place("toy", FirstTier.DISK)
    write_shard(memory.own("toy"), rank=0, step=3)
    write_shard(memory.peer("toy"), rank=4, step=3)
    assert not (tmp_path / "shm").exists()
    assert memory.transfers_beside(memory.own("toy") / "r0-a.shard") == nvme / "transfers"
    later = Memory("m0", tmp_path / "shm", nvme=nvme)
    assert later.own("toy") == nvme / "own" / "toy"
    assert {(shard.rank, shard.tier) for shard in later.shards()} == {(0, Tier.MEMORY), (4, Tier.PEER)}
    later.forget("toy")
    assert later.shards() == ()
    assert later.own("toy") == tmp_path / "shm" / "own" / "toy"


def test_a_machine_without_a_disk_for_it_refuses_such_a_job(tmp_path: Path) -> None:
    """With the setting that is missing, or the folder that is."""
    with pytest.raises(
        CheckpointError, match=r"'toy' has checkpoint.first_tier: disk.*HOLDFAST_FIRST_TIER_DIR"
    ):
        Memory("m0", tmp_path).place("toy", FirstTier.DISK)
    with pytest.raises(CheckpointError, match="is no folder on this machine"):
        Memory("m0", tmp_path, nvme=tmp_path / "nowhere" / "home" / "m0").place("toy", FirstTier.DISK)


def test_shards_of_another_number_of_ranks_are_freed(memory: Memory) -> None:
    """Those of earlier epochs; slots of ranks that run here stay: they have them mapped."""
    mine = write_shard(memory.own("toy"), rank=0, epoch=1)
    elsewhere = write_shard(memory.own("toy"), rank=1, epoch=1)
    copy = write_shard(memory.peer("toy"), rank=0, epoch=1)
    newer = write_shard(memory.peer("toy"), rank=2, epoch=2)
    assert {*memory.drop_strays("toy", 2, 3, (0,), None)} == {elsewhere, copy}
    assert {shard.epoch for shard in memory.shards()} == {1, 2}
    assert mine.exists()
    assert newer.exists()
    assert memory.drop_strays("toy", 3, 2, (0,), None) == []


def test_copies_that_another_machine_keeps_now_are_freed(memory: Memory) -> None:
    """Of earlier epochs, of the same number of ranks; not where the gateway does not say what is kept here."""
    mine = write_shard(memory.own("toy"), rank=0, epoch=1)
    kept = write_shard(memory.peer("toy"), rank=1, epoch=1)
    stray = write_shard(memory.peer("toy"), rank=0, epoch=1)
    assert memory.drop_strays("toy", 2, 2, (0,), None) == []
    assert memory.drop_strays("toy", 1, 2, (0,), (1,)) == []
    assert memory.drop_strays("toy", 2, 2, (0,), (1,)) == [stray]
    assert mine.exists()
    assert kept.exists()


def test_memory_of_a_freed_copy_is_not_held_by_its_mapping(memory: Memory) -> None:
    """Copies that peers sent are mapped: without that a freed file would go on to fill shared memory."""
    stray = write_shard(memory.peer("toy"), rank=0, epoch=1)
    mapped = memory.mapped(stray, stray.stat().st_size)
    assert memory.drop_strays("toy", 2, 2, (1,), ()) == [stray]
    assert memory.mapped(stray, 4096) is not mapped


def test_a_file_under_another_ones_name_is_no_copy(memory: Memory) -> None:
    """Copied by hand from another job's folder, or from another rank's name: whole, and not what it is called."""
    for folder in (memory.own("toy"), memory.peer("toy"), memory.disk("toy")):
        write_shard(folder, rank=0, step=3, job="other")
        write_shard(folder, rank=1, step=3)
        (folder / "r1-a.shard").rename(folder / "r2-a.shard")
    assert memory.shards() == ()
    assert [memory.find("toy", rank, 3) for rank in range(3)] == [None] * 3


def test_a_damaged_shard_that_cannot_be_discarded_is_left_out(
    memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file system that became read-only: the next copy is taken, and the search ends."""
    path = write_shard(memory.own("toy"), step=3)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)

    def refused(path: Path) -> None:
        raise OSError(errno.EROFS, "Read-only file system", str(path))

    monkeypatch.setattr(buffers, "discard", refused)
    damaged: list[str] = []
    with pytest.raises(DamagedError, match=r"memory of m0\): .*bytes changed"):
        memory.require_whole("toy", 0, 3)
    kept = write_shard(memory.disk("toy"), step=3)
    assert memory.require_whole("toy", 0, 3, 0, damaged)[0] == kept
    assert len(damaged) == 1

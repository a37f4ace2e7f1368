"""Shard files: complete or nothing, the newest never overwritten, damage refused by name."""

from __future__ import annotations

import errno
import mmap
import os
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.errors import CheckpointError
from holdfast.storage.checkpoints.save import buffers, slot_files
from holdfast.storage.checkpoints.save.buffers import HEADER_BYTES, ShardHeader

SIZE = 2 * HEADER_BYTES


def header(step: int, rank: int = 3, epoch: int = 1, nbytes: int = SIZE) -> ShardHeader:
    return ShardHeader(
        job="gpt",
        rank=rank,
        step=step,
        epoch=epoch,
        world_size=8,
        plan="1.1",
        meta_offset=HEADER_BYTES,
        meta_nbytes=100,
        payload_offset=HEADER_BYTES + 128,
        owned_nbytes=64,
        payload_nbytes=1000,
        file_nbytes=nbytes,
    )


def write(folder: Path, step: int, rank: int = 3, epoch: int = 1) -> Path:
    path = buffers.slot_to_overwrite(folder, rank)
    with slot_files.create(path, SIZE) as buf:
        buffers.begin(buf)
        buf[HEADER_BYTES:SIZE] = bytes([step % 256]) * (SIZE - HEADER_BYTES)
        plain = header(step, rank, epoch)
        buffers.commit(buf, plain.model_copy(update={"digest": buffers.digest_of(buf, plain)}))
    return path


def flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


def test_a_committed_shard_is_found_and_verified(tmp_path: Path) -> None:
    """The inventory lists exactly the committed shards."""
    path = write(tmp_path, 7)
    assert buffers.verify(path).step == 7
    assert [(found, each.step) for found, each in buffers.inventory(tmp_path)] == [(path, 7)]


def test_a_shard_being_written_is_no_shard(tmp_path: Path) -> None:
    """From begin to commit no reader may use the content."""
    path = write(tmp_path, 7)
    with slot_files.create(path, SIZE) as buf:
        buffers.begin(buf)
    assert buffers.read_header(path) is None
    with pytest.raises(CheckpointError, match="rank 3"):
        buffers.verify(path)


@pytest.mark.parametrize("offset", [HEADER_BYTES + 5, HEADER_BYTES + 128, HEADER_BYTES + 1127])
def test_a_flipped_bit_is_refused_by_rank_and_step(tmp_path: Path, offset: int) -> None:
    """A bit that changed in metadata or payload names the shard it was found in."""
    path = write(tmp_path, 7)
    flip(path, offset)
    with pytest.raises(CheckpointError, match="shard of rank 3 at step 7"):
        buffers.verify(path)


@pytest.mark.parametrize("offset", [0, 9, 17, 25, 60, 200])
def test_a_damaged_header_is_refused(tmp_path: Path, offset: int) -> None:
    """A bit that changed in the header makes the shard incomplete, whatever its fields are."""
    path = write(tmp_path, 7)
    flip(path, offset)
    with pytest.raises(CheckpointError, match="rank 3"):
        buffers.verify(path)


def test_a_short_file_is_refused(tmp_path: Path) -> None:
    """A file that lost its end is no shard."""
    path = write(tmp_path, 7)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match="cut short"):
        buffers.verify(path)


def test_slots_alternate(tmp_path: Path) -> None:
    """Each save takes the older slot, so the two newest steps are always there."""
    paths = [write(tmp_path, step) for step in range(1, 6)]
    assert paths[0] == paths[2] == paths[4] != paths[1] == paths[3]
    assert [each.step for _, each in buffers.inventory(tmp_path)] == [4, 5]


def test_newest_is_by_epoch_before_step(tmp_path: Path) -> None:
    """After a rollback the lower step of the newer epoch is the newest."""
    write(tmp_path, 80, epoch=1)
    newest = write(tmp_path, 51, epoch=2)
    assert buffers.slot_to_overwrite(tmp_path, 3) != newest


def test_discard_newer_keeps_the_common_step(tmp_path: Path) -> None:
    """A leftover beyond the restored step must not make the restored shard the one to overwrite."""
    common, beyond = write(tmp_path, 10), write(tmp_path, 11)
    other = write(tmp_path, 11, rank=4)
    assert buffers.discard_newer(tmp_path, 10, rank=3) == [beyond]
    assert buffers.slot_to_overwrite(tmp_path, 3) == beyond
    assert buffers.verify(common).step == 10
    assert buffers.verify(other).step == 11


def test_another_size_replaces_the_file(tmp_path: Path) -> None:
    """A process that has the old file mapped keeps its bytes: a shrunk mapping would be a SIGBUS."""
    path = write(tmp_path, 7)
    with path.open("rb") as old:
        slot_files.create(path, SIZE * 2).close()
        assert len(old.read()) == SIZE
    assert path.stat().st_size == SIZE * 2
    assert buffers.read_header(path) is None


def test_full_memory_is_one_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No room: the error names the file and the size, and leaves nothing behind."""

    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(CheckpointError, match="more shared memory"):
        slot_files.create(tmp_path / "r0-a.shard", 1 << 60)
    assert list(tmp_path.iterdir()) == []


def test_other_files_are_ignored(tmp_path: Path) -> None:
    """An inventory skips what is not a shard."""
    (tmp_path / "r1-a.shard").write_bytes(b"short")
    (tmp_path / "metadata-1.pickle").write_bytes(b"")
    assert buffers.inventory(tmp_path) == []
    assert buffers.inventory(tmp_path / "missing") == []


def test_the_agent_side_needs_no_torch() -> None:
    """Agents read shards without importing torch."""
    code = "import sys, holdfast.storage.checkpoints.save.buffers; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_lent_shard_keeps_its_bytes(tmp_path: Path) -> None:
    """Saves go on in a new file; the loan's end leaves the two slots and nothing else."""
    path, name = write(tmp_path, 1), tmp_path / "transfer" / "r3"
    before = path.read_bytes()
    assert slot_files.lend(path, 1, name).step == 1
    for step in (2, 3, 4):
        write(tmp_path, step)
    assert name.read_bytes() == before
    assert [each.step for _, each in buffers.inventory(tmp_path)] == [3, 4]
    slot_files.release(path, name)
    assert sorted(each.name for each in tmp_path.rglob("*.*")) == ["r3-a.shard", "r3-b.shard"]


def test_a_reserved_file_takes_the_lent_ones_place(tmp_path: Path) -> None:
    """The save that follows allocates nothing."""
    path, name = write(tmp_path, 1), tmp_path / "transfer" / "r3"
    slot_files.lend(path, 1, name)
    slot_files.reserve(path, SIZE)
    reserved = path.with_suffix(".reserved").stat().st_ino
    write(tmp_path, 2)
    assert write(tmp_path, 3) == path
    assert path.stat().st_ino == reserved
    assert not path.with_suffix(".reserved").exists()


def test_only_what_is_there_is_lent(tmp_path: Path) -> None:
    """A slot that was saved over since holds another step; half a shard holds none."""
    path = write(tmp_path, 5)
    with pytest.raises(CheckpointError, match="no longer holds step 4"):
        slot_files.lend(path, 4, tmp_path / "loan")
    with slot_files.create(path, SIZE) as buf:
        buffers.begin(buf)
    with pytest.raises(CheckpointError, match="no longer holds step 5"):
        slot_files.lend(path, 5, tmp_path / "loan")
    assert not (tmp_path / "loan").exists()


@pytest.mark.parametrize(
    "wrong",
    [
        {"payload_nbytes": 10**12},
        {"payload_nbytes": -1},
        {"owned_nbytes": 1001},
        {"meta_offset": -5},
        {"meta_offset": 64},
        {"meta_nbytes": 129},
        {"meta_nbytes": -100},
        {"payload_offset": 2**63},
        {"file_nbytes": -1},
    ],
)
def test_a_header_whose_parts_do_not_lie_in_the_file_describes_no_shard(
    tmp_path: Path, wrong: dict[str, int]
) -> None:
    """A plan by its sizes would ask for a terabyte, and the machine would be taken for full."""
    path = write(tmp_path, 7)
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as buf:
        found = buffers.parse_header(buf)
        assert found is not None
        buffers.commit(buf, found.model_copy(update=wrong))
        assert buffers.parse_header(buf) is None
    assert buffers.inventory(tmp_path) == []

"""Shared memory that is too small, on a file system that really is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.errors import CheckpointError
from holdfast.models.checkpoint import Copies
from holdfast.storage.checkpoints.save import buffers, room
from tests.agent.shards import write_shard
from tests.mounts import small

MIB = 1 << 20
ALONE, PAIRED = Copies(own=2), Copies(own=2, peer=2)


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Path]:
    with small(tmp_path / "shm", 8) as folder:
        yield folder / "own" / "toy"


def test_what_fits_is_let_start(memory: Path) -> None:
    """Two buffers per rank, and as many for the peer's copies; what lies there already is used again."""
    room.require(memory, 2 * MIB, 1, PAIRED)
    write_shard(memory, payload=bytes(3 * MIB))
    room.require(memory, 2 * MIB - 4096, 2, ALONE)
    (memory / "other").write_bytes(bytes(MIB))  # of another program: it stays where it is
    with pytest.raises(CheckpointError, match=r"need 8\.0 MiB, there is room for 7\.0 MiB"):
        room.require(memory, 2 * MIB - 4096, 2, ALONE)


def test_too_little_is_refused_with_the_size_that_is_needed(memory: Path) -> None:
    """And how to give more, before a byte was written."""
    with pytest.raises(
        CheckpointError, match=r"2 ranks x 2 buffers of 2\.0 MiB .* need 16\.0 MiB"
    ) as refused:
        room.require(memory, 2 * MIB, 2, PAIRED)
    assert "there is room for 8.0 MiB" in str(refused.value)
    assert "--shm-size" in str(refused.value)
    assert not memory.exists()


def test_one_copy_on_the_peer_needs_less(memory: Path) -> None:
    """A size that is refused with two copies fits with one, and the refusal states so."""
    with pytest.raises(CheckpointError, match="peer_buffers: 1"):
        room.require(memory, 5 * MIB // 2, 1, PAIRED)
    assert room.require(memory, 5 * MIB // 2, 1, Copies(own=2, peer=1)) == ""


def test_a_peak_that_does_not_fit_is_a_warning(memory: Path) -> None:
    """Training starts; the memory for an upload beside the copies at rest is reported in advance."""
    warning = room.require(memory, 2 * MIB, 1, Copies(own=2, peer=2, uploads=1))
    assert "8.0 MiB" in warning
    assert "10.0 MiB in all" in warning
    assert "training goes on" in warning
    assert room.require(memory, 3 * MIB // 2, 1, Copies(own=2, peer=2, uploads=1)) == ""


def test_memory_that_fills_up_later_costs_the_save_only(memory: Path) -> None:
    """A clear error instead of a bus error, and the newest complete shard is still there."""
    write_shard(memory, step=1, payload=bytes(5 * MIB))
    with pytest.raises(CheckpointError, match="Give the machine more shared memory"):
        write_shard(memory, step=2, payload=bytes(5 * MIB))
    ((path, header),) = buffers.inventory(memory)
    assert header.step == 1
    buffers.verify(path)

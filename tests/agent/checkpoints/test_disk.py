"""Shards on the machine's disk: whole or not at all, bounded, and there after the memory was lost."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.agent.checkpoints import disk
from holdfast.agent.checkpoints.memory import Memory
from holdfast.errors import CheckpointError
from holdfast.models.checkpoint import Tier
from holdfast.storage.checkpoints.save import buffers
from tests.agent.shards import write_shard
from tests.mounts import small

ENOUGH = 1 << 30


def copy(memory: Memory, step: int, rank: int = 0, limit: int = ENOUGH, size: int = 1000) -> Path:
    path = write_shard(memory.own("toy"), rank, step, payload=bytes([step]) * size)
    header = buffers.read_header(path)
    assert header is not None
    memory.disk("toy").mkdir(parents=True, exist_ok=True)
    return disk.write(path, header, memory.disk("toy"), limit)


@pytest.fixture
def memory(tmp_path: Path) -> Memory:
    return Memory("m1", tmp_path / "shm", tmp_path / "machine")


def test_the_newest_two_outlive_the_memory(memory: Memory) -> None:
    """Found as shards of their own tier, verified, and served on request."""
    for step in (1, 2, 3):
        copy(memory, step)
    shutil.rmtree(memory.root)
    found = memory.shards()
    assert [(shard.step, shard.tier) for shard in found] == [(2, Tier.DISK), (3, Tier.DISK)]
    path, _ = memory.require("toy", 0, 3)
    assert buffers.verify(path).step == 3


def test_memory_goes_before_disk(memory: Memory) -> None:
    """The same step from the cheaper place."""
    copy(memory, 1)
    assert memory.require("toy", 0, 1)[0].parent == memory.own("toy")


def test_a_copy_again_writes_nothing(memory: Memory) -> None:
    """The same step, reported twice."""
    copy(memory, 1)
    path = memory.require("toy", 0, 1)[0]
    before = {each: each.stat().st_mtime_ns for each in memory.disk("toy").iterdir()}
    header = buffers.read_header(path)
    assert header is not None
    disk.write(path, header, memory.disk("toy"), ENOUGH)
    assert {each: each.stat().st_mtime_ns for each in memory.disk("toy").iterdir()} == before


def test_what_is_no_shard_makes_way(memory: Memory) -> None:
    """A folder in its place, and a link that leads nowhere: the copy is there, and so is the next."""
    folder = memory.disk("toy")
    folder.mkdir(parents=True)
    buffers.shard_path(folder, 0, "a").mkdir()
    buffers.shard_path(folder, 0, "b").symlink_to("nowhere")
    for step in (1, 2):
        copy(memory, step)
    assert [shard.step for shard in memory.shards() if shard.tier is Tier.DISK] == [1, 2]


def test_the_limit_holds_over_all_jobs_and_ranks(memory: Memory) -> None:
    """Refuse a shard that does not fit, naming the setting; keep the others."""
    copy(memory, 1, size=10_000)
    held = memory.shards()
    with pytest.raises(CheckpointError, match="HOLDFAST_DISK_MIB"):
        copy(memory, 1, rank=1, limit=15_000, size=10_000)
    assert [shard for shard in memory.shards() if shard.tier is Tier.DISK] == [
        shard for shard in held if shard.tier is Tier.DISK
    ]


def test_a_torn_file_is_never_chosen(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Power lost in the middle: the rest lies under another name and counts for nothing; damage is noticed."""
    copy(memory, 1)
    monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError(errno.EIO, "power lost")))
    monkeypatch.setattr(Path, "unlink", lambda *_, **__: None)
    with pytest.raises(OSError, match="power lost"):
        copy(memory, 2)
    monkeypatch.undo()
    assert list(memory.disk("toy").glob("*.part"))
    assert [shard.step for shard in memory.shards() if shard.tier is Tier.DISK] == [1]
    copy(memory, 3)
    (short,) = [path for path, header in buffers.inventory(memory.disk("toy")) if header.step == 3]
    os.truncate(short, short.stat().st_size - 1)
    assert [shard.step for shard in memory.shards() if shard.tier is Tier.DISK] == [1]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one MiB."""
    with small(tmp_path / "small", 1) as folder:
        yield folder


def test_a_full_disk_costs_the_copy_only(tmp_path: Path, small_disk: Path) -> None:
    """ENOSPC in the middle: nothing is left of it, the older copy stays, and a smaller one fits again."""
    memory = Memory("m1", tmp_path / "shm", small_disk)
    copy(memory, 1, size=600_000)
    with pytest.raises(OSError, match="No space left"):
        copy(memory, 2, size=600_000)
    assert list(memory.disk("toy").glob("*.part")) == []
    assert [shard.step for shard in memory.shards() if shard.tier is Tier.DISK] == [1]
    copy(memory, 3, size=200_000)
    assert [shard.step for shard in memory.shards() if shard.tier is Tier.DISK] == [1, 3]

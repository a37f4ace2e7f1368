"""Folders, links and pipes in the place of a shard are no copy, and no obstacle to a start or a save."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.storage.checkpoints.save import buffers, slot_files
from tests.storage.checkpoints.save.test_buffers import SIZE, write


def folder(path: Path) -> None:
    path.mkdir()


def full_folder(path: Path) -> None:
    path.mkdir()
    (path / "results.csv").write_text("someone's")


def pipe(path: Path) -> None:
    os.mkfifo(path)


def dangling(path: Path) -> None:
    path.symlink_to("nowhere")


def loop(path: Path) -> None:
    path.symlink_to(path)


def another_file(path: Path) -> None:
    other = path.parent / "elsewhere"
    other.write_bytes(bytes(SIZE))
    path.symlink_to(other)


odd = pytest.mark.parametrize("make", [folder, full_folder, pipe, dangling, loop, another_file])
Make = Callable[[Path], None]


@odd
def test_it_is_no_shard(tmp_path: Path, make: Make) -> None:
    """Nor does a reader wait for one who writes into a pipe."""
    make(buffers.shard_path(tmp_path, 3, "a"))
    assert buffers.read_header(buffers.shard_path(tmp_path, 3, "a")) is None
    assert buffers.inventory(tmp_path) == []


@odd
def test_a_rank_starts_and_saves_all_the_same(tmp_path: Path, make: Make) -> None:
    """It makes way; what a folder or a link led to stays."""
    path = buffers.shard_path(tmp_path, 3, "a")
    make(path)
    assert slot_files.take_over(tmp_path, 3, 2) == []
    with slot_files.create_locked(path, SIZE, 2):
        pass
    assert path.is_file()
    assert not path.is_symlink()
    assert write(tmp_path, 8) == path
    if make is full_folder:
        assert [kept.read_text() for kept in tmp_path.rglob("results.csv")] == ["someone's"]
    if make is another_file:
        assert (tmp_path / "elsewhere").read_bytes() == bytes(SIZE)


@odd
def test_a_copy_is_received_all_the_same(tmp_path: Path, make: Make) -> None:
    """Of another machine's shard, or of one's own that is fetched."""
    path = buffers.shard_path(tmp_path, 3, "a")
    make(path)
    slot_files.create(path, SIZE).close()
    assert path.is_file()
    assert not path.is_symlink()


def test_files_that_make_way_are_never_confused(tmp_path: Path) -> None:
    """Two folders, one after the other, are both kept."""
    path = buffers.shard_path(tmp_path, 3, "a")
    for _ in range(2):
        full_folder(path)
        slot_files.create(path, SIZE).close()
        path.unlink()
    assert len(list(tmp_path.rglob("results.csv"))) == 2

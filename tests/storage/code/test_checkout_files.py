"""Files that a script made in its checkout may have no end, or block an open: their kind and size show it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.storage.code import archive


def to_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path, 0o700)


def to_giant(path: Path) -> None:
    os.truncate(path, 1 << 40)


def to_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def to_link(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


@pytest.mark.parametrize("make", [to_pipe, to_giant, to_folder, to_link])
def test_a_file_that_became_something_else_is_not_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[Path], None]
) -> None:
    """Its agent read a file of a TiB into its memory, and a pipe without end."""
    (tmp_path / "train.py").write_text("x")
    (tmp_path / "train.py").chmod(0o755)
    packed = archive.pack(tmp_path)
    listed = archive.listing(packed.content, packed.version)
    assert archive.difference(tmp_path, listed) == ""

    make(tmp_path / "train.py")

    def opened(path: Path) -> bytes:
        raise AssertionError(f"{path} was read")

    monkeypatch.setattr(Path, "read_bytes", opened)
    assert "train.py" in archive.difference(tmp_path, listed)

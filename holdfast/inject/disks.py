"""Mount a small file system over a folder of the machine: full, or turned read-only."""

from __future__ import annotations

import errno
from pathlib import Path

from holdfast.errors import RefusedError
from holdfast.inject.journal import MARK, Mounted, Pen, need
from holdfast.inject.target import Target

SIZE_MIB = 1
_WHY = "mounting takes root (CAP_SYS_ADMIN)"


def full(target: Target, pen: Pen, path: Path | None) -> Path:
    """Mount a full file system: writes fail with ENOSPC; files there already can be read."""
    where = _over(target, pen, path)
    with (where / ".filled-by-holdfast-inject").open("wb", buffering=0) as filler:
        try:
            while filler.write(bytes(4096)):
                pass
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
    return where


def read_only(target: Target, pen: Pen, path: Path | None) -> Path:
    """Mount a read-only file system, as after an error of it: writes fail with EROFS."""
    where = _over(target, pen, path)
    need(("mount", "-o", "remount,ro", str(where)), _WHY)
    return where


def _over(target: Target, pen: Pen, path: Path | None) -> Path:
    """Mount over ``path``, by default the machine's ``data`` folder, with a copy of what is in it.

    Raises:
        RefusedError: it is no folder, holds too much, or what runs the machine lies there.
        UnavailableError: it cannot be mounted.
    """
    where = (path or target.folder / "data").resolve()
    if where == target.folder or where in target.folder.parents:
        raise RefusedError(f"{where} holds what runs machine {target.machine}: choose a folder of its data")
    if path is None:
        where.mkdir(exist_ok=True)
    if not where.is_dir():
        raise RefusedError(f"--path {where} is no folder on this host")
    here = [each for each in where.rglob("*") if each.is_file()]
    if (size := sum(each.stat().st_size for each in here)) > SIZE_MIB * 2**19:
        raise RefusedError(
            f"{where} holds {size} bytes, expected at most {SIZE_MIB * 2**19}: choose another folder"
        )
    kept = [(each.relative_to(where), each.read_bytes()) for each in here]
    pen.note(Mounted(folder=where))
    need(("mount", "-t", "tmpfs", "-o", f"size={SIZE_MIB}m", MARK, str(where)), _WHY)
    for name, content in kept:
        (where / name).parent.mkdir(parents=True, exist_ok=True)
        (where / name).write_bytes(content)
    return where

"""A local folder (or one on a shared file system)."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from holdfast.data.files import File, counts
from holdfast.data.places import changed
from holdfast.errors import SourceError

_NOT_DATA = "lost+found"
"""At the root of a disk, and closed to all but root."""


@dataclass(frozen=True)
class FolderPlace:
    """All files below a folder, but those whose name, or whose folder's, begins with ``.`` or ``_``."""

    name: str

    def files(self) -> Iterator[File]:
        """Walk it; a folder that cannot be read is no empty one."""
        root = Path(self.name)
        if not root.is_dir():
            raise SourceError(f"{root}: no such folder")
        for folder, below, names in os.walk(root, followlinks=True, onerror=_unread):
            below[:] = [each for each in below if counts(each) and each != _NOT_DATA]
            for each in below:
                _refuse_loop(root, Path(folder) / each)
            for name in names:
                if not counts(name):
                    continue
                path = Path(folder) / name
                if (found := _status(path)) is None:
                    continue
                yield File(path.relative_to(root).as_posix(), found.st_size, str(found.st_mtime_ns))

    def open(self, file: File) -> BinaryIO:
        """Open it, and compare."""
        try:
            opened = (Path(self.name) / file.path).open("rb")
        except OSError as error:
            raise SourceError(changed(self.name, file, f"{error.strerror}")) from None
        found = os.fstat(opened.fileno())
        if (found.st_size, str(found.st_mtime_ns)) != (file.nbytes, file.version):
            opened.close()
            raise SourceError(
                changed(self.name, file, f"it has {found.st_size} bytes and version {found.st_mtime_ns}")
            )
        return opened


def _status(path: Path) -> os.stat_result | None:
    """Return the status of a file; None: it was taken away since.

    Raises:
        SourceError: it is a link to nothing, or no file that can be read twice.
    """
    try:
        found = path.stat()
    except FileNotFoundError:
        if path.is_symlink():
            raise SourceError(f"{path}: a link to nothing: {path.readlink()}") from None
        return None
    except OSError as error:
        raise SourceError(f"{path}: cannot be read: {error.strerror}") from None
    if not stat.S_ISREG(found.st_mode):  # opening a pipe waits for its writer
        raise SourceError(f"{path}: no regular file, and no folder")
    return found


def _unread(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):  # taken away since
        raise SourceError(f"{error.filename}: cannot be listed: {error.strerror}") from error


def _refuse_loop(root: Path, path: Path) -> None:
    """Refuse a link to a folder that it is itself in: its files would be listed again and again."""
    if not path.is_symlink():
        return
    above = path.parent
    while not path.samefile(above):
        if above == root:
            return
        above = above.parent
    raise SourceError(f"{path}: a link to a folder that it is in: {above}")

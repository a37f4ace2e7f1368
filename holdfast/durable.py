"""Files that must survive: written whole or not at all, and on the disk when the call returns.

A file that was renamed into place without a sync may be empty after a power cut, and so may its name be gone until its
folder is synced. Each step is a failpoint (:mod:`holdfast.failpoint`) under the name of what is written.
"""

from __future__ import annotations

import errno
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from holdfast import failpoint

_AT_ONCE = 16
"""Syncs of small files: a file system writes several with one turn of its journal."""
_NO_SYNC = {errno.EINVAL, errno.ENOTSUP}
"""Errors of file systems that cannot sync a folder."""


def write(path: Path, content: bytes | memoryview | str, place: str, mode: int = 0o666) -> None:
    """Put ``content`` in place of the file at ``path``; one writer at a time.

    Raises:
        OSError: it could not be written; the old file is as it was.
    """
    new = path.with_name(f"{path.name}.new")
    data = content.encode() if isinstance(content, str) else content
    try:
        _fill(new, data, mode)
        replace(new, path, place)
    except BaseException:
        new.unlink(missing_ok=True)
        raise


def create(path: Path, content: str, place: str, mode: int = 0o666) -> bool:
    """Write as :func:`write` does, unless a file is there; False: one was, or another process was faster."""
    new = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        _fill(new, content.encode(), mode)
        failpoint.here(f"{place}.written")
        sync(new)
        failpoint.here(f"{place}.synced")
        os.link(new, path)  # unlike a rename, it does not replace
        failpoint.here(f"{place}.renamed")
    except FileExistsError:
        return False
    finally:
        new.unlink(missing_ok=True)
    sync(path.parent)
    failpoint.here(f"{place}.kept")
    return True


def replace(new: Path, path: Path, place: str) -> None:
    """Rename ``new``, a complete file or folder, to ``path``, and have both its content and the rename on the disk."""
    failpoint.here(f"{place}.written")
    if new.is_dir():
        sync_tree(new)
    else:
        sync(new)
    failpoint.here(f"{place}.synced")
    os.rename(new, path)
    failpoint.here(f"{place}.renamed")
    sync(path.parent)
    failpoint.here(f"{place}.kept")


def sync(path: Path) -> None:
    """Have the content of a file, or the names in a folder, on the disk.

    Raises:
        OSError: the disk took it not. What the kernel still shows may be lost.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if not path.is_dir() or error.errno not in _NO_SYNC:
            raise
    finally:
        os.close(descriptor)


def sync_tree(folder: Path) -> None:
    """Sync everything in ``folder`` as :func:`sync` does; links are names, and are part of their folder."""
    found = [Path(where) / name for where, _, names in os.walk(folder) for name in names]
    files = [path for path in found if not path.is_symlink()]
    folders = [Path(where) for where, _, _ in os.walk(folder)]
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="sync") as pool:
        list(pool.map(sync, [*files, *folders]))


def make_folder(folder: Path, mode: int = 0o777) -> None:
    """Have ``folder``, and the names of those that had to be made on the way on the disk."""
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    folder.mkdir(parents=True, exist_ok=True, mode=mode)
    for each in reversed(missing):
        sync(each.parent)


def _fill(path: Path, content: bytes | memoryview, mode: int) -> None:
    with os.fdopen(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, mode), "wb") as file:
        file.write(content)

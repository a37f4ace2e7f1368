"""Locks of torch's C++ extensions that killed processes left: the next start would wait for them without end.

``torch.utils.cpp_extension`` (DeepSpeed builds its operators with it) makes a file ``lock`` in the folder of an
extension while it compiles, and other processes wait until that is gone (``torch/utils/file_baton.py``). Nothing
removes it when its maker is killed.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from holdfast.agent.inspection.mount_helper import type_of
from holdfast.agent.ranks import proc

_SHARED = (
    "nfs",
    "cifs",
    "smb",
    "lustre",
    "ceph",
    "gpfs",
    "beegfs",
    "afs",
    "autofs",
    "fuse",
    "9p",
    "virtiofs",
)
"""Beginnings of types of file systems on which a process of another machine may hold a lock."""


def remove(env: Mapping[str, str], since: float) -> list[Path]:
    """Remove the locks made after ``since`` (Unix seconds) that no process holds; return them.

    Left alone are those of other users, and all on a file system that other machines may have. Such a one is not even
    looked at: its server may be away, and the end of an epoch would wait for that.

    Args:
        env: environment of the processes that may have left them.
        since: when the first of these began.
    """
    folder = root(env)
    if _is_shared(os.path.abspath(folder)):
        return []
    with contextlib.suppress(OSError):
        found = [path for path in (*folder.glob("*/lock"), *folder.glob("*/*/lock")) if _is_ours(path, since)]
        if found and not _is_shared(os.path.realpath(folder)):
            held = set(_open_files())
            return [path for path in found if os.path.realpath(path) not in held and _unlink(path)]
    return []


def root(env: Mapping[str, str]) -> Path:
    """Return the folder that torch builds extensions in."""
    if given := env.get("TORCH_EXTENSIONS_DIR"):
        return Path(given)
    cache = env.get("XDG_CACHE_HOME") or Path(env.get("HOME") or Path.home()) / ".cache"
    return Path(cache) / "torch_extensions"


def _is_ours(path: Path, since: float) -> bool:
    try:
        found = path.lstat()
    except OSError:
        return False
    return found.st_uid == os.geteuid() and found.st_mtime >= since


def _is_shared(path: str) -> bool:
    return type_of(path).startswith(_SHARED)


def _open_files() -> Iterator[str]:
    """Yield the files that processes have open, as far as this one may see: all of its own user's."""
    for pid in proc.everyone():
        try:
            names = os.listdir(f"/proc/{pid}/fd")
        except OSError:
            continue
        for name in names:
            with contextlib.suppress(OSError):
                yield os.readlink(f"/proc/{pid}/fd/{name}")


def _unlink(path: Path) -> bool:
    with contextlib.suppress(OSError):
        path.unlink()
        return True
    return False

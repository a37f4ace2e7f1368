"""A control group (version 2) for each epoch on this machine, where possible: it identifies the epoch's processes.

It sets no limits. Every process that a rank starts is in it, whatever that process does to its environment, its session
or its parents. Groups are made only where no other manager organises them: at the root of what this process sees of
them (a container with a writable one, a host without systemd), or below a unit that systemd has delegated
(``Delegate=yes``); never in a step of Slurm, which ends what is in its own group and knows of none below. Elsewhere
marks are used instead (:mod:`holdfast.agent.ranks.marks`).
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import xxhash

_PROCESSES = "cgroup.procs"
_DELEGATED = ("trusted.delegate", "user.delegate")
_BEGIN = "holdfast-"
_ABANDONED_S = 60.0
"""A group that was made and is empty is about to be joined, or its epoch has ended."""


class EpochGroups:
    """The groups of one machine; names of runs distinguish them."""

    def __init__(self, machine: Path, parent: Path | None) -> None:
        """``machine`` is its folder; groups are made in ``parent`` (None: none are made)."""
        self._parent = parent
        self._prefix = f"{_BEGIN}{xxhash.xxh3_64_hexdigest(os.fsencode(machine))[:8]}-"

    def open(self, run: str) -> str:
        """Make the group of ``run``; return the file by which a process joins it, or nothing."""
        if self._parent is None:
            return ""
        folder = self._folder(self._parent, run)
        with suppress(OSError):
            folder.mkdir(exist_ok=True)
            if os.access(folder / _PROCESSES, os.W_OK):
                return str(folder / _PROCESSES)
        return ""

    def members(self, run: str = "") -> list[int]:
        """Return pids in the group of ``run``; without a name, in all groups of this machine."""
        found: list[int] = []
        for folder in self._folders(run):
            with suppress(OSError):
                found += map(int, (folder / _PROCESSES).read_text().split())
        return found

    def close(self, run: str = "") -> None:
        """Remove the empty ones of these groups."""
        for folder in self._folders(run):
            with suppress(OSError):
                folder.rmdir()

    def close_abandoned(self) -> None:
        """Remove empty groups of any machine of this host, which agents that were killed left; not the newest."""
        for folder in self._parent.glob(f"{_BEGIN}*") if self._parent is not None else ():
            with suppress(OSError):
                if time.time() - folder.stat().st_mtime > _ABANDONED_S:
                    folder.rmdir()

    def _folder(self, parent: Path, run: str) -> Path:
        return parent / f"{self._prefix}{run}"

    def _folders(self, run: str) -> list[Path]:
        if self._parent is None:
            return []
        return [self._folder(self._parent, run)] if run else [*self._parent.glob(f"{self._prefix}*")]


def join(processes: str) -> None:
    """Move this process into the group that :meth:`EpochGroups.open` made, if it made one and the kernel lets it."""
    if processes:
        with suppress(OSError):
            Path(processes).write_text("0")


def parent_of_groups(environ: Mapping[str, str], proc: Path = Path("/proc/self")) -> Path | None:
    """Return where this process may make groups; None: nowhere."""
    if "SLURM_JOB_ID" in environ:
        return None
    with suppress(OSError):
        mounted = _mounted(proc)
        own = next(
            (
                line.removeprefix("0::")
                for line in (proc / "cgroup").read_text().splitlines()
                if line.startswith("0::")
            ),
            None,
        )
        if mounted is None or own is None:
            return None
        folder = mounted / own.lstrip("/")
        if own == "/" or _is_delegated(folder):
            return folder
    return None


def _mounted(proc: Path) -> Path | None:
    """Return where version 2 is mounted as a whole."""
    for line in (proc / "mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        _, _, _, root, place, *_ = before.split()
        if after.split()[0] == "cgroup2" and root == "/":
            return Path(place)
    return None


def _is_delegated(folder: Path) -> bool:
    for name in _DELEGATED:
        with suppress(OSError):
            if os.getxattr(folder, name) == b"1":
                return True
    return False

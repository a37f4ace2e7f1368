"""Control groups of both versions: limits for some processes of this host."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from holdfast.errors import UnavailableError

ROOT = Path("/sys/fs/cgroup")
_GONE_S = 5.0


def parent_of(controller: str, root: Path = ROOT) -> Path:
    """Return where a group with a limit by ``controller`` (``cpu``, ``memory``) can be made.

    Raises:
        UnavailableError: the kernel has none, or it is not ours to change.
    """
    if (root / controller / "cgroup.procs").exists():
        return root / controller
    if (root / "cgroup.controllers").exists():
        with contextlib.suppress(OSError):
            (root / "cgroup.subtree_control").write_text(f"+{controller}")
        if controller in (root / "cgroup.subtree_control").read_text().split():
            return root
    raise UnavailableError(
        f"this host has no control group for {controller} that we may change: it takes root, and cgroup version 1 "
        f"or 2 with its {controller} controller below {root}"
    )


def make(folder: Path, limits: Mapping[str, str], pids: Iterable[int]) -> None:
    """Make a group with ``limits`` (file, value; where versions differ, files that are not there are left out).

    Raises:
        UnavailableError: the kernel forbids it.
    """
    try:
        folder.mkdir(exist_ok=True)
        there = {name: value for name, value in limits.items() if (folder / name).exists()}
        for name, value in there.items():
            (folder / name).write_text(value)
        if not there:
            raise UnavailableError(
                f"{folder} has none of {', '.join(limits)}: it takes root and these limits"
            )
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                (folder / "cgroup.procs").write_text(str(pid))
    except OSError as error:
        raise UnavailableError(f"{folder}: {error.strerror}: limits of control groups take root") from None


def dissolve(folder: Path, parent: Path) -> None:
    """Let all that is in a group go back, those that were started in it too; harmless where there is none."""
    deadline = time.monotonic() + _GONE_S
    while folder.exists() and time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            for pid in (folder / "cgroup.procs").read_text().split():
                with contextlib.suppress(OSError):
                    (parent / "cgroup.procs").write_text(pid)
        with contextlib.suppress(OSError):
            folder.rmdir()
        time.sleep(0.02)

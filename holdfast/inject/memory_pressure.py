"""A rank's memory runs out: a limit that it is over at its next allocation, so the kernel kills it."""

from __future__ import annotations

import time
from pathlib import Path

from holdfast.inject import cgroup
from holdfast.inject.journal import ControlGroup, Link, Pen
from holdfast.inject.target import Target
from holdfast.plugins.policy import site_policy

LEFT_BYTES = 4 * 2**20
"""Memory that it may still take: pages that it holds already are not counted in its new group."""


def strike(target: Target, pen: Pen, rank: int | None) -> int:
    """Limit one rank's process; returns the rank.

    Raises:
        UnavailableError: no control group can be made here.
    """
    parent = cgroup.parent_of("memory")
    chosen, pid = target.rank(rank)
    folder = parent / f"holdfast-memory-{target.key}"
    pen.note(ControlGroup(folder=folder, parent=parent))
    cgroup.make(folder, {"memory.limit_in_bytes": "-1", "memory.max": "max"}, [])
    if target.settings.driver == "local":
        _show(target, pen, folder)
    limits = {"memory.limit_in_bytes": str(LEFT_BYTES), "memory.max": str(LEFT_BYTES), "memory.swap.max": "0"}
    cgroup.make(folder, limits, [pid])
    return chosen


def _show(target: Target, pen: Pen, group: Path) -> None:
    """Let the machine's agent see the kernel's count of kills, as that of the container that it would run in.

    The kernel of a host that machines share is not looked at. The count must have been seen before it grows.
    """
    events = target.folder / "sys/fs/cgroup/memory.events"
    counts = next(path for path in (group / "memory.events", group / "memory.oom_control") if path.exists())
    events.parent.mkdir(parents=True, exist_ok=True)
    pen.note(Link(path=events, to=counts))
    events.unlink(missing_ok=True)
    events.symlink_to(counts)
    time.sleep(2 * site_policy(target.settings.policy_file).detect.intervals.host_s)

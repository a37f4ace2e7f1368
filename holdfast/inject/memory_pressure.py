"""A rank's memory runs out: a limit that it is over at its next allocation, so the kernel kills it."""

from __future__ import annotations

from holdfast.inject import cgroup
from holdfast.inject.journal import Group, Pen
from holdfast.inject.target import Target

LEFT_BYTES = 4 * 2**20
"""What it may still have: pages that it holds already are not counted in its new group."""


def strike(target: Target, pen: Pen, rank: int | None) -> int:
    """Limit one rank's process; returns the rank.

    Raises:
        UnavailableError: no control group can be made here.
    """
    parent = cgroup.parent_of("memory")
    chosen, pid = target.rank(rank)
    folder = parent / f"holdfast-memory-{target.key}"
    pen.note(Group(folder=folder, parent=parent))
    limits = {"memory.limit_in_bytes": str(LEFT_BYTES), "memory.max": str(LEFT_BYTES), "memory.swap.max": "0"}
    cgroup.make(folder, limits, [pid])
    return chosen

"""A check before training starts: whether a machine's first tier has room for the checkpoints of its ranks."""

from __future__ import annotations

import os
from pathlib import Path

from holdfast.errors import CheckpointError
from holdfast.models.checkpoint import Copies
from holdfast.shown import size
from holdfast.storage.checkpoints.save import local_disk


def require(folder: Path, rank_nbytes: int, ranks: int, copies: Copies) -> str:
    """Refuse to start training that could not be saved; return a warning when transfers will not fit beside it.

    Args:
        folder: the ranks' shard folder.
        rank_nbytes: about the size of one rank's state.
        ranks: of this machine.
        copies: of each rank's state, of this machine's ranks and of as many of another machine.

    Raises:
        CheckpointError: the copies at rest do not fit; the message has the bytes needed and available.
    """
    each = rank_nbytes * ranks
    there = free_nbytes(folder) + held_nbytes(folder)
    if there < copies.at_rest * each:
        raise CheckpointError(
            f"{_where(folder)} is too small: {_what(rank_nbytes, ranks, copies)} need {size(copies.at_rest * each)}, "
            f"there is room for {size(there)}. {_advice(folder, copies)}"
        )
    if there < copies.at_peak * each:
        return (
            f"{_where(folder)} has room for {size(there)}: enough for {_what(rank_nbytes, ranks, copies)} "
            f"({size(copies.at_rest * each)}), not for what transfers to S3 or to the disk hold beside them "
            f"({size(copies.at_peak * each)} in all). While one is under way saves may be left out; training goes on."
        )
    return ""


def free_nbytes(folder: Path) -> int:
    """Return the free bytes where ``folder`` lies or will lie."""
    while not folder.exists():
        folder = folder.parent
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize


def held_nbytes(folder: Path) -> int:
    """Return the bytes that this job's shards and its peer's copies take already: they are used again."""
    peer = folder.parent.parent / "peer" / folder.name
    return sum(path.stat().st_size for each in (folder, peer) for path in each.glob("r*-?.shard"))


def _what(rank_nbytes: int, ranks: int, copies: Copies) -> str:
    peer = f" and {copies.peer} for the peer machine's" if copies.peer else ""
    return f"{ranks} ranks x {copies.own} buffers of {size(rank_nbytes)}{peer}"


def _in_memory(folder: Path) -> bool:
    return local_disk.file_system(folder) == "tmpfs"


def _where(folder: Path) -> str:
    return f"shared memory at {folder}" if _in_memory(folder) else f"the first tier at {folder}"


def _advice(folder: Path, copies: Copies) -> str:
    fewer = " set checkpoint.peer_buffers: 1 in the job file," if copies.peer > 1 else ""
    more = (
        "Give the machine more (docker: --shm-size; Kubernetes: an emptyDir of medium Memory at /dev/shm; a host: "
        f"mount -o remount,size=... /dev/shm),{fewer} save to its NVMe disk (checkpoint.first_tier: disk), "
        if _in_memory(folder)
        else f"Give it a larger disk,{fewer} "
    )
    return f"{more}or run fewer ranks on it."

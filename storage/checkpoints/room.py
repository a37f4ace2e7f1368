"""Whether a machine's shared memory has room for the checkpoints of its ranks, told before training starts."""

from __future__ import annotations

import os
from pathlib import Path

from holdfast.errors import CheckpointError

BUFFERS = 2


def require(folder: Path, rank_nbytes: int, ranks: int, *, peer: bool) -> None:
    """Refuse to start training that could not be saved.

    Args:
        folder: the ranks' shard folder.
        rank_nbytes: about the size of one rank's state.
        ranks: of this machine.
        peer: whether another machine's copies come here as well, of the same number and size.

    Raises:
        CheckpointError: says how much is needed and how much there is.
    """
    needed = BUFFERS * rank_nbytes * ranks * (2 if peer else 1)
    there = free_nbytes(folder) + held_nbytes(folder)
    if there < needed:
        copies = " and as much for the peer machine's copies" if peer else ""
        raise CheckpointError(
            f"shared memory at {folder} is too small: {ranks} ranks x {BUFFERS} buffers of {told(rank_nbytes)}{copies} "
            f"need {told(needed)}, there is room for {told(there)}. Give the machine more (docker: --shm-size; "
            "Kubernetes: an emptyDir of medium Memory at /dev/shm; a host: mount -o remount,size=... /dev/shm), or "
            "run fewer ranks on it."
        )


def free_nbytes(folder: Path) -> int:
    """What is free where ``folder`` lies or will lie."""
    while not folder.exists():
        folder = folder.parent
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize


def held_nbytes(folder: Path) -> int:
    """What this job's shards and its peer's copies take already: it is used again."""
    peer = folder.parent.parent / "peer" / folder.name
    return sum(path.stat().st_size for each in (folder, peer) for path in each.glob("r*-?.shard"))


def told(nbytes: int) -> str:
    """A size for people."""
    return f"{nbytes / 2**30:.2f} GiB" if nbytes >= 2**30 else f"{nbytes / 2**20:.1f} MiB"

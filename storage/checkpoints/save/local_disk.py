"""Whether a folder lies on a disk of this machine: a first tier on a network file system would be none."""

from __future__ import annotations

import re
from pathlib import Path

from holdfast.errors import CheckpointError

_REMOTE = re.compile(
    r"nfs|nfs4|cifs|smb3|smbfs|ceph|lustre|gpfs|beegfs|glusterfs|orangefs|pvfs2|afs|9p|virtiofs|panfs|"
    r"wekafs|fuse(\.(?!fuseblk).*)?"
)
"""Types of file systems whose bytes lie elsewhere, or may (FUSE)."""
_OCTAL = re.compile(r"\\([0-7]{3})")


def require(folder: Path, mounts: Path = Path("/proc/self/mountinfo")) -> None:
    """Refuse ``folder`` unless it is there and lies on a file system of this machine.

    Raises:
        CheckpointError: it is not; the message names the reason.
    """
    if not folder.is_dir():
        raise CheckpointError(
            f"first tier on disk: HOLDFAST_FIRST_TIER_DIR = {folder} is no folder on this machine. Make it on a local "
            "NVMe disk, or set checkpoint.first_tier: memory."
        )
    kind = file_system(folder, mounts)
    if _REMOTE.fullmatch(kind):
        raise CheckpointError(
            f"first tier on disk: HOLDFAST_FIRST_TIER_DIR = {folder} lies on {kind}, a network file system; every save "
            "would go over the network. Take a folder on a local NVMe disk, or set checkpoint.first_tier: memory."
        )


def file_system(folder: Path, mounts: Path = Path("/proc/self/mountinfo")) -> str:
    """Return the type of the file system that ``folder`` lies on; empty when it cannot be determined."""
    wanted, best, kind = folder.resolve(), Path(), ""
    for line in mounts.read_text().splitlines():
        before, _, after = line.partition(" - ")
        point = Path(_OCTAL.sub(lambda found: chr(int(found[1], 8)), before.split()[4]))
        # Of mounts over one another the last counts.
        if wanted.is_relative_to(point) and len(point.parts) >= len(best.parts):
            best, kind = point, after.split()[0]
    return kind

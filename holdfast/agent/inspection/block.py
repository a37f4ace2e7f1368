"""Block devices as sysfs shows them, and which of them the machine works on."""

from __future__ import annotations

import os
import re
from pathlib import Path

_VIRTUAL = re.compile(r"^(?:loop|ram|zram|md|dm-|nbd|rbd|sr|fd|vd|xvd)")
"""No disks: nothing there to ask for its health."""
_MOUNTS_AT_MOST = 4 << 20


class BlockDevices:
    """Block devices of one machine, read afresh."""

    def __init__(self, sys: Path, proc: Path) -> None:
        self._block = sys / "block"
        self._sources = _sources(proc)

    def disks(self) -> list[str]:
        """Return the names of the disks that are in use (``sda``, ``nvme0n1``)."""
        try:
            names = sorted(os.listdir(self._block))
        except OSError:
            return []
        return [name for name in names if not _VIRTUAL.match(name) and self.in_use(name)]

    def in_use(self, name: str) -> bool:
        """Return whether it or a part of it is mounted, or is a part of an array, volume or encrypted device."""
        folder = self._block / name
        parts = [folder, *folder.glob(f"{name}*")]
        return any(part.name in self._sources or _any(part / "holders") for part in parts)


def _any(folder: Path) -> bool:
    try:
        return bool(os.listdir(folder))
    except OSError:
        return False


def _sources(proc: Path) -> frozenset[str]:
    """Return the names of mounted devices; ``/dev/md/data`` is read as the device that it links to."""
    try:
        with (proc / "mounts").open(encoding="utf-8", errors="replace") as file:
            lines = file.read(_MOUNTS_AT_MOST).splitlines()
    except OSError:
        return frozenset()
    sources = {line.partition(" ")[0] for line in lines if line.startswith("/dev/")}
    return frozenset(os.path.basename(os.path.realpath(source)) for source in sources)

"""File systems that the machine needs: full, read-only, broken or unresponsive ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

from holdfast.agent.inspection.base import Sign
from holdfast.agent.inspection.mount_probe import MountProbe
from holdfast.models.alert import AlertKind
from holdfast.policies.config.thresholds import StorageLimits

UNRESPONSIVE = frozenset(
    {
        "EACCES",
        "ECONNREFUSED",
        "ECONNRESET",
        "EHOSTDOWN",
        "EHOSTUNREACH",
        "EKEYEXPIRED",
        "EKEYREVOKED",
        "ENETUNREACH",
        "ENOKEY",
        "ENOTCONN",
        "EREMOTEIO",
        "ESHUTDOWN",
        "ESTALE",
        "ETIMEDOUT",
    }
)
"""Errors of a mount whose server is away, evicted this client or refuses it; others are the disk's."""
REMOTE = frozenset(
    {"nfs", "nfs4", "lustre", "ceph", "cifs", "smb3", "gpfs", "beegfs", "wekafs", "glusterfs", "afs", "9p"}
)
"""File systems without a disk in this machine: a soft mount of NFS reports EIO when its server is away."""
_OVERLAY = "fuse.fuse-overlayfs"


class PathProbe(Protocol):
    """Looks at one path, in bounded time."""

    @property
    def path(self) -> Path:
        """The path that it looks at."""
        ...

    @property
    def stuck_s(self) -> float:
        """Seconds for which it has not been answered."""
        ...

    def look(self) -> dict[str, Any] | None:
        """See :meth:`~holdfast.agent.inspection.mount_probe.MountProbe.look`."""
        ...


class Mounts:
    """Little space may pass while a job cleans up; what does not pass by itself fires at once."""

    name = "mounts"

    def __init__(
        self,
        own: Path,
        limits: StorageLimits,
        probe: Callable[[Path, float], PathProbe] = MountProbe,
        folder: Path | None = None,
    ) -> None:
        """``own``: what the machine needs in any case; ``folder``: its own alone, with what is mounted within it."""
        self._folder, self._limits, self._probe = folder, limits, probe
        self._probes: dict[Path, PathProbe] = {}
        self._find(own, *map(Path, limits.paths))

    def look(self) -> list[Sign]:
        """Return signs of each path."""
        self._find(*(_within(self._folder) if self._folder else ()))
        return [sign for probe in self._probes.values() for sign in self._of(probe)]

    def _find(self, *paths: Path) -> None:
        """Add these paths to those that are looked at."""
        for path in paths:
            if path not in self._probes:
                self._probes[path] = self._probe(path, self._limits.mount_timeout_s)

    def _of(self, probe: PathProbe) -> Iterator[Sign]:
        found, device = probe.look(), str(probe.path)
        if found is None:
            limit = self._limits.mount_timeout_s
            waited = max(probe.stuck_s, limit)
            detail = f"{device} has not answered for {waited:.0f} s (limit {limit:g} s)"
            yield _bad(AlertKind.MOUNT_UNRESPONSIVE, device, detail, waited, limit)
        elif "error" in found:
            kind = AlertKind.DISK_FAULT
            if found.get("errno") in UNRESPONSIVE or _is_remote(str(found.get("type") or "")):
                kind = AlertKind.MOUNT_UNRESPONSIVE
            yield _bad(kind, device, f"{device}: {found['error']}")
        else:
            yield from self._space(device, found)

    def _space(self, device: str, found: dict[str, Any]) -> Iterator[Sign]:
        if found["read_only"]:
            yield _bad(AlertKind.MOUNT_READONLY, device, f"{device} is mounted read-only")
        free, least = int(found["free_bytes"]), self._limits.disk_free_bytes
        yield Sign(
            kind=AlertKind.DISK_FULL,
            ok=free >= least,
            detail=f"{free >> 20} MiB free under {device} (limit {least >> 20} MiB)",
            device=device,
            value=free,
            limit=least,
            misses=self._limits.misses,
        )
        if found["inodes"]:  # some file systems count none
            share, least_share = found["inodes_free"] / found["inodes"], self._limits.inodes_free_share
            yield Sign(
                kind=AlertKind.INODES_FULL,
                ok=share >= least_share,
                detail=f"{share:.1%} of the inodes under {device} free (limit {least_share:.1%})",
                device=device,
                value=share,
                limit=least_share,
                misses=self._limits.misses,
            )


def _is_remote(kind: str) -> bool:
    return kind in REMOTE or (kind.startswith("fuse.") and kind != _OVERLAY)


def _within(folder: Path) -> list[Path]:
    """Return the mount points within the machine's folder."""
    try:
        lines = Path("/proc/self/mounts").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    found = [Path(line.split(" ")[1].replace("\\040", " ")) for line in lines if line.count(" ") > 1]
    return [path for path in found if folder in path.parents]


def _bad(
    kind: AlertKind, device: str, text: str, value: float | None = None, limit: float | None = None
) -> Sign:
    return Sign(kind=kind, ok=False, detail=text, device=device, value=value, limit=limit)

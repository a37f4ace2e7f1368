"""File systems that the machine needs: full, read-only, broken or unresponsive ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

from holdfast.agent.inspection.base import Sign
from holdfast.agent.inspection.mount_probe import MountProbe
from holdfast.models.alert import AlertKind
from holdfast.policies.thresholds import StorageLimits

UNRESPONSIVE = frozenset({"ESTALE", "ENOTCONN", "EHOSTDOWN", "EHOSTUNREACH", "ETIMEDOUT", "EREMOTEIO"})
"""Errors of a mount whose server is away; others are the disk's."""


class Probe(Protocol):
    """Looks at one path, in bounded time."""

    @property
    def path(self) -> Path:
        """What it looks at."""
        ...

    @property
    def stuck_s(self) -> float:
        """For how long it has not been answered."""
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
        probe: Callable[[Path, float], Probe] = MountProbe,
    ) -> None:
        self._limits = limits
        paths = dict.fromkeys((own, *map(Path, limits.paths)))
        self._probes = [probe(path, limits.mount_timeout_s) for path in paths]

    def look(self) -> list[Sign]:
        """Signs of each path."""
        return [sign for probe in self._probes for sign in self._of(probe)]

    def _of(self, probe: Probe) -> Iterator[Sign]:
        found, device = probe.look(), str(probe.path)
        if found is None:
            limit = self._limits.mount_timeout_s
            waited = max(probe.stuck_s, limit)
            said = f"{device} has not answered for {waited:.0f} s (limit {limit:g} s)"
            yield _bad(AlertKind.MOUNT_UNRESPONSIVE, device, said, waited, limit)
        elif "error" in found:
            kind = AlertKind.DISK_FAULT
            if found.get("errno") in UNRESPONSIVE:
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


def _bad(
    kind: AlertKind, device: str, said: str, value: float | None = None, limit: float | None = None
) -> Sign:
    return Sign(kind=kind, ok=False, detail=said, device=device, value=value, limit=limit)

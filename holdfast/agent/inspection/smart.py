"""Disks, by what they report of themselves: ``smartctl``, where smartmontools is installed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from holdfast.agent.inspection.base import Sign
from holdfast.agent.inspection.block import Blocks
from holdfast.agent.inspection.rates import Rates
from holdfast.agent.inspection.tool import Tool
from holdfast.models.alert import AlertKind
from holdfast.policies.classify import smart
from holdfast.policies.classify.smart import Disk
from holdfast.policies.config.thresholds import ToolLimits


class SmartDisks:
    """A check of the disks that are in use. It starts no test.

    A disk that fails or that loses data explains the end of a rank, and accuses no machine alone. Counters of a disk's
    whole life accuse no machine: only what grows while it is watched counts.
    """

    name = "smart"

    def __init__(
        self, sys: Path, proc: Path, smartctl: Tool, limits: ToolLimits, clock: Callable[[], float]
    ) -> None:
        self._sys = sys
        self._proc = proc
        self._smartctl = smartctl
        self._limits = limits
        self._clock = clock
        self._rates = Rates()

    def look(self) -> list[Sign]:
        """Return the signs of every disk that reports its health; none without the tool."""
        if not self._smartctl.installed:
            return []
        disks = Blocks(self._sys, self._proc).disks()
        return [sign for name in disks for sign in self._of(f"/dev/{name}")]

    def _of(self, device: str) -> Iterator[Sign]:
        # -n: a disk that sleeps is left asleep.
        disk = smart.read(self._smartctl.ask("-j", "-a", "-n", "standby", device))
        if disk is None:
            return
        bad = [*self._lost(disk, device), *_said(disk, device)]
        yield from bad or [
            Sign(kind=AlertKind.HOST_FAULT, ok=True, detail=f"{device} reports no fault", device=device)
        ]

    def _lost(self, disk: Disk, device: str) -> Iterator[Sign]:
        now, limit = self._clock(), self._limits.disk_errors
        for name, count in disk.errors.items():
            grown = self._rates.growth((device, name), count, now)[0]
            if grown >= limit:
                words = f"{device}: {name.replace('_', ' ')} grew by {grown:.0f} to {count}"
                yield Sign(
                    kind=AlertKind.HOST_FAULT,
                    ok=False,
                    detail=words,
                    device=device,
                    value=grown,
                    limit=limit,
                    evidence={"check": "disk_errors", "counter": name},
                )


def _said(disk: Disk, device: str) -> Iterator[Sign]:
    if disk.failing or disk.noted:
        evidence = {"check": "disk_failing"} if disk.failing else {"check": "disk_warning", "harmless": True}
        words = f"{device} reports that it fails: {disk.why}" if disk.failing else f"{device}: {disk.noted}"
        yield Sign(kind=AlertKind.HOST_FAULT, ok=False, detail=words[:500], device=device, evidence=evidence)

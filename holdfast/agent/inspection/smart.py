"""Disks, by what they report of themselves: ``smartctl``, where smartmontools is installed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

from holdfast.agent.inspection.base import Sign
from holdfast.agent.inspection.block import BlockDevices
from holdfast.agent.inspection.rates import Rates
from holdfast.agent.inspection.tool import Tool
from holdfast.models.alert import AlertKind
from holdfast.policies.classify import smart
from holdfast.policies.classify.smart import Disk
from holdfast.policies.config.thresholds import ToolLimits

COMMAND_S = 5.0
"""Seconds that all disks together have to answer while a recovery waits; most answer within a tenth of one."""


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
        return [sign for device in self._devices() for sign in self._of(device)]

    def look_soon(self) -> list[Sign]:
        """Return the signs of the disks that answer within :data:`COMMAND_S`; one that names those that do not."""
        if not self._smartctl.installed:
            return []
        until = time.monotonic() + COMMAND_S
        signs: list[Sign] = []
        silent: list[str] = []
        for device in self._devices():
            left_s = until - time.monotonic()
            found = list(self._of(device, left_s)) if left_s > 0 else []
            signs += found
            # One that answers at once and reports nothing of its health (a virtual disk, one that sleeps) had its time.
            silent += [] if found or time.monotonic() < until else [device]
        if silent:
            words = f"not tested within {COMMAND_S:g} s: {', '.join(silent)}"
            signs.append(Sign(kind=AlertKind.HOST_FAULT, ok=True, detail=words[:500], device="disks"))
        return signs

    def _devices(self) -> list[str]:
        return [f"/dev/{name}" for name in BlockDevices(self._sys, self._proc).disks()]

    def _of(self, device: str, within_s: float | None = None) -> Iterator[Sign]:
        # -n: a disk that sleeps is left asleep.
        disk = smart.read(self._smartctl.ask("-j", "-a", "-n", "standby", device, within_s=within_s))
        if disk is None:
            return
        bad = [*self._lost(disk, device), *_reported(disk, device)]
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


def _reported(disk: Disk, device: str) -> Iterator[Sign]:
    if disk.failing or disk.noted:
        evidence = {"check": "disk_failing"} if disk.failing else {"check": "disk_warning", "harmless": True}
        words = f"{device} reports that it fails: {disk.why}" if disk.failing else f"{device}: {disk.noted}"
        yield Sign(kind=AlertKind.HOST_FAULT, ok=False, detail=words[:500], device=device, evidence=evidence)

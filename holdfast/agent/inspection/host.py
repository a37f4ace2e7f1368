"""The host: memory left, and the disk under the project's state."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from holdfast.agent.inspection.base import Limits
from holdfast.models.alert import Alert, AlertKind, Finding
from holdfast.models.base import Frozen


class Reading(Frozen):
    """One check's value against its limit."""

    check: str
    value: float
    limit: float
    ok: bool
    detail: str
    at_once: bool = False
    """Does not pass by itself: fires at the first failure."""


class HostReader:
    """Reads this host through psutil and statvfs."""

    def __init__(self, home: Path, limits: Limits) -> None:
        self._home = home
        self._limits = limits

    def __call__(self) -> list[Reading]:
        """All readings now."""
        return [self._memory(), *self._disk()]

    def _memory(self) -> Reading:
        memory = psutil.virtual_memory()
        share, limit = memory.available / memory.total, self._limits.memory_free_share
        detail = f"{memory.available >> 20} MiB of {memory.total >> 20} MiB memory available"
        return Reading(check="memory_low", value=share, limit=limit, ok=share >= limit, detail=detail)

    def _disk(self) -> list[Reading]:
        try:
            disk = os.statvfs(self._home)
        except OSError as error:
            detail = f"{self._home}: {error.strerror}"
            return [Reading(check="disk_fault", value=0, limit=1, ok=False, detail=detail, at_once=True)]
        free, limit = disk.f_bavail * disk.f_frsize, self._limits.disk_free_bytes
        read_only = bool(disk.f_flag & os.ST_RDONLY)
        return [
            Reading(
                check="disk_full",
                value=free,
                limit=limit,
                ok=free >= limit,
                detail=f"{free >> 20} MiB free under {self._home}",
            ),
            Reading(
                check="filesystem_readonly",
                value=float(read_only),
                limit=0,
                ok=not read_only,
                detail=f"{self._home} is mounted read-only" if read_only else f"{self._home} is writable",
                at_once=True,
            ),
        ]


class HostDetector:
    """Fires when a reading is bad ``misses`` times in a row; again only after it was good."""

    name = "host"
    blocking = True  # statvfs waits for a network file system that is away

    def __init__(
        self, machine: str, home: Path, limits: Limits, read: Callable[[], list[Reading]] | None = None
    ) -> None:
        self.interval_s = limits.host_s
        self._machine = machine
        self._misses = limits.misses
        self._read = read or HostReader(home, limits)
        self._bad: dict[str, int] = {}

    def poll(self) -> list[Alert]:
        """Alerts for checks that became bad."""
        readings = self._read()
        self._bad = {each.check: self._bad.get(each.check, 0) + 1 for each in readings if not each.ok}
        due = {each.check: 1 if each.at_once else self._misses for each in readings}
        return [self._alert(each) for each in readings if self._bad.get(each.check) == due[each.check]]

    def inspect(self) -> list[Finding]:
        """Every reading; none of them proves the machine faulty, as a job can fill memory and disk as well."""
        return [
            Finding(check=each.check, machine=self._machine, ok=each.ok, detail=each.detail)
            for each in self._read()
        ]

    def _alert(self, reading: Reading) -> Alert:
        return Alert(
            kind=AlertKind.HOST_FAULT,
            machine=self._machine,
            at=time.time(),
            fingerprint=f"host:{self._machine}:{reading.check}",
            evidence=reading.model_dump(exclude={"ok", "at_once"}),
        )

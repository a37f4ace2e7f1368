"""The kernel log: Xids, out-of-memory kills, panics, segmentation faults, failing disks and file systems."""

from __future__ import annotations

import os
import stat
import time
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from holdfast.agent.inspection.follow import Follower
from holdfast.agent.inspection.kmsg import Kmsg
from holdfast.agent.inspection.nvml_events import xid_alert
from holdfast.agent.inspection.xid_line import XidLine, parse
from holdfast.models.alert import Alert, AlertKind, Finding
from holdfast.policies.classify import xid
from holdfast.policies.classify.patterns import KERNEL_LOG_FILE, Match, registry
from holdfast.policies.config.thresholds import IntervalsPolicy

_REMEMBERED = 64
_XID_HINT = "Xid"
_OF_DISKS = (AlertKind.DISK_FAULT, AlertKind.FILESYSTEM_ERROR)
_FILES = "loop"
"""Devices that are files: an image that is damaged is no fault of the machine that mounts it."""


class LineSource(Protocol):
    """Source of new lines."""

    def lines(self) -> list[str]:
        """Return lines since the last call."""
        ...


class KernelLog:
    """A detector that follows one kernel log; only lines written after it was made count."""

    name = "kernel_log"
    blocking = False

    def __init__(
        self,
        machine: str,
        path: Path,
        intervals: IntervalsPolicy,
        clock: Callable[[], float] = time.time,
        block: Path = Path("/sys/block"),
    ) -> None:
        """``block`` lists the machine's block devices: media that can be taken out are none of its disks."""
        self._block = block
        self.interval_s = intervals.kernel_log_s
        self._machine = machine
        self._recent_s = intervals.recent_s
        self._clock = clock
        self._patterns = registry(KERNEL_LOG_FILE)
        self._lines = follow(path)
        self._seen: OrderedDict[str, tuple[float, Alert]] = OrderedDict()
        self._pending: dict[str, Alert] = {}
        self._since: OrderedDict[str, float] = OrderedDict()

    def poll(self) -> list[Alert]:
        """Return one alert per fault and device; a storm within one poll is one alert with the number of faults."""
        self._read()
        alerts, self._pending = list(self._pending.values()), {}
        return alerts

    def inspect(self) -> list[Finding]:
        """Return lost GPUs among the Xids of the last minutes, the newest lines included; and what else was seen."""
        self._read()
        since = self._clock() - self._recent_s
        seen = [alert for at, alert in self._seen.values() if at >= since]
        lost = [alert for alert in seen if _is_lost(alert)]
        others = ", ".join(_short(alert) for alert in seen if not _is_lost(alert))
        if not lost:
            detail = f"nothing that loses a GPU: {others}" if others else "no fault"
            return [Finding(check=self.name, machine=self._machine, ok=True, detail=detail[:500])]
        return [
            Finding(
                check=self.name,
                machine=self._machine,
                ok=False,
                sure=True,
                detail=str(alert.evidence["line"]),
            )
            for alert in lost
        ]

    def _read(self) -> None:
        now = self._clock()
        for line in self._lines.lines():
            alert = self._judge(line, now)
            if alert is None:
                continue
            before = self._pending.get(alert.key)
            count = int(before.evidence["count"]) + 1 if before else 1
            first = before or alert
            self._pending[alert.key] = first.model_copy(
                update={"evidence": first.evidence | {"count": count}}
            )
            self._seen[alert.key] = (now, first)
            self._seen.move_to_end(alert.key)
        while len(self._seen) > _REMEMBERED:
            self._seen.popitem(last=False)

    def _judge(self, line: str, now: float) -> Alert | None:
        if _XID_HINT in line and (found := parse(line)) is not None:
            return (
                _switch_alert(self._machine, found, now) if found.switch else _xid(self._machine, found, now)
            )
        matched = self._patterns.match(line)
        if matched is None:
            return None
        alert = _alert(self._machine, matched, now)
        device = str(alert.evidence.get("device", ""))
        if alert.kind in _OF_DISKS and (device.startswith(_FILES) or self._can_be_taken_out(device)):
            return None
        return self._of_episode(alert, matched.pattern.again_s, now) if matched.pattern.again_s else alert

    def _can_be_taken_out(self, device: str) -> bool:
        """Return whether a device, or the one that it is a part of, is a stick, a card or a BMC's virtual medium."""
        for name in filter(None, (device, device.rstrip("0123456789"))):
            try:
                return (self._block / name / "removable").read_text().startswith("1")
            except OSError:
                continue
        return False

    def _of_episode(self, alert: Alert, again_s: float, now: float) -> Alert:
        """Return the alert with its episode in the fingerprint: after ``again_s`` the same line is a new signal."""
        base = alert.fingerprint
        since = self._since.get(base, now)
        if not since <= now < since + again_s:
            since = now
        self._since[base] = since
        self._since.move_to_end(base)
        while len(self._since) > _REMEMBERED:
            self._since.popitem(last=False)
        return alert.model_copy(update={"fingerprint": f"{base}:{since:.3f}"})


def follow(path: Path) -> LineSource:
    """Follow a file, or the kernel's ring buffer when ``path`` is a device."""
    try:
        device = stat.S_ISCHR(os.stat(path).st_mode)
    except OSError:
        device = False
    return Kmsg(path) if device else Follower(path)


def _xid(machine: str, found: XidLine, at: float) -> Alert:
    known = found.model_dump(exclude_none=True, exclude={"xid", "switch", "link"})
    alert = xid_alert(machine, found.xid, found.pci, at, known)
    # Another recovery action in the line is a new alert, also after NVML reported the bare code.
    changed = f":{found.action}" if found.xid in xid.BY_LINE else ""
    return alert.model_copy(update={"fingerprint": f"{alert.fingerprint}{changed}"})


def _switch_alert(machine: str, found: XidLine, at: float) -> Alert:
    evidence: dict[str, Any] = {
        "sxid": found.xid,
        "pci": found.pci,
        "fatal": found.lost,
        "action": found.action,
        "line": found.line,
    }
    link = {"link": found.link} if found.link is not None else {}
    return Alert(
        kind=AlertKind.SXID,
        machine=machine,
        at=at,
        fingerprint=f"sxid:{machine}:{found.xid}:{found.pci}:{found.link}",
        evidence=evidence | link,
    )


def _alert(machine: str, matched: Match, at: float) -> Alert:
    pattern = matched.pattern
    groups: dict[str, Any] = {
        name: int(value) if value.isdecimal() and len(value) < 16 else value
        for name, value in matched.groups.items()
    }
    evidence = {"pattern": pattern.name, **pattern.evidence, **groups, "line": matched.line}
    # A kill or a fault of each process is a new alert; the same disk failing again is not.
    which = groups.get("pid") or groups.get("device") or groups.get("pci") or ""
    return Alert(
        kind=pattern.kind,
        machine=machine,
        at=at,
        fingerprint=f"{pattern.name}:{machine}:{which}",
        evidence=evidence | {"detail": matched.line[:300]},
    )


def _is_lost(alert: Alert) -> bool:
    return alert.kind is AlertKind.GPU_LOST or bool(alert.evidence.get("lost") or alert.evidence.get("fatal"))


def _short(alert: Alert) -> str:
    evidence = alert.evidence
    code = evidence.get("xid") or evidence.get("sxid")
    where = evidence.get("pci") or evidence.get("device") or evidence.get("process") or ""
    return f"{alert.kind.value}{f' {code}' if code else ''} at {where}" if where else alert.kind.value

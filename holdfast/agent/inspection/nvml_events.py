"""Xid events that the driver reports through NVML, for hosts whose kernel log cannot be read."""

from __future__ import annotations

import contextlib
import time
from typing import Any

from holdfast.agent.inspection.nvml import Nvml, bus_address
from holdfast.models.alert import Alert, AlertKind, Finding
from holdfast.policies.classify import xid

_MOST = 64
"""Events taken per poll; the rest waits for the next one."""


class XidEvents:
    """A detector: waits for nothing, takes what has come."""

    name = "nvml_events"
    blocking = True

    def __init__(self, machine: str, interval_s: float, nvml: Nvml) -> None:
        self.interval_s = interval_s
        self._machine = machine
        self._nvml = nvml
        self._set: Any = None

    def poll(self) -> list[Alert]:
        """Return one alert per Xid and GPU; the kernel log's alert of the same Xid has the same fingerprint."""
        nvml = self._nvml.loaded()
        if nvml is None or not self._registered(nvml):
            return []
        found: dict[tuple[int, str], Alert] = {}
        for _ in range(_MOST):
            event = _next(nvml, self._set)
            if event is None:
                break
            code, pci = int(event.eventData), _pci(nvml, event.device)
            found[code, pci] = xid_alert(
                self._machine, code, pci, time.time(), {"line": f"NVML event: Xid {code}"}
            )
        return list(found.values())

    def inspect(self) -> list[Finding]:
        """Return nothing: events are no state."""
        return []

    def _registered(self, nvml: Any) -> bool:
        if self._set is not None:
            return True
        try:
            count, events = nvml.nvmlDeviceGetCount(), nvml.nvmlEventSetCreate()
        except nvml.NVMLError:
            return False
        registered = [_registers(nvml, index, events) for index in range(count)]
        if any(registered):
            self._set = events
            return True
        with contextlib.suppress(nvml.NVMLError):
            nvml.nvmlEventSetFree(events)  # it holds descriptors, and the next poll makes another one
        return False


def xid_alert(machine: str, code: int, pci: str, at: float, evidence: dict[str, Any]) -> Alert:
    """Return the alert of an Xid from either source."""
    entry = xid.lookup(code)
    known = {"xid": code, "pci": pci, "action": entry.action.value, "name": entry.name, "lost": entry.lost}
    return Alert(
        kind=AlertKind.XID,
        machine=machine,
        at=at,
        fingerprint=f"xid:{machine}:{code}:{pci}",
        evidence=known | evidence,
    )


def _registers(nvml: Any, index: int, events: Any) -> bool:
    """Have the events of a GPU come; return False for one that has none, or is lost: that is watched elsewhere."""
    try:
        gpu = nvml.nvmlDeviceGetHandleByIndex(index)
        nvml.nvmlDeviceRegisterEvents(gpu, nvml.nvmlEventTypeXidCriticalError, events)
    except nvml.NVMLError:
        return False
    return True


def _next(nvml: Any, events: Any) -> Any:
    try:
        return nvml.nvmlEventSetWait_v2(events, 0)
    except nvml.NVMLError:  # a time-out: nothing came
        return None


def _pci(nvml: Any, gpu: Any) -> str:
    try:
        return bus_address(nvml.nvmlDeviceGetPciInfo(gpu).busId)
    except nvml.NVMLError:
        return "unknown"

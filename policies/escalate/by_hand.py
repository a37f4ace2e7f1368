"""Evictions that a person asked for: no person is asked whether they may be done."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from holdfast.models.alert import Alert, AlertKind, IncidentClass


def asks_for(alerts: Iterable[Alert], machines: Collection[str]) -> bool:
    """Return whether people asked for the eviction of all of ``machines``."""
    asked = {
        alert.machine
        for alert in alerts
        if alert.kind is AlertKind.MANUAL and alert.evidence.get("class") == IncidentClass.MACHINE_FAULT
    }
    return bool(machines) and set(machines) <= asked

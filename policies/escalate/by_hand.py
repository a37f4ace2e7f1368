"""Evictions that a person asked for: no person is asked whether they may be done."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from holdfast.models.alert import Alert, AlertKind, IncidentClass


def asks_for(alerts: Iterable[Alert], machines: Collection[str]) -> bool:
    """Return whether people asked for the eviction of all of ``machines``."""
    asked = {alert.machine for alert in alerts if _asks(alert)}
    return bool(machines) and set(machines) <= asked


def _asks(alert: Alert) -> bool:
    """Return whether a person, who is named, asked for it: a run or an event may come of an automation."""
    evidence = alert.evidence
    named = bool(evidence.get("by")) and evidence.get("source") != "prefect"
    return alert.kind is AlertKind.MANUAL and named and evidence.get("class") == IncidentClass.MACHINE_FAULT

"""Evictions that a person asked for: no person is asked whether they may be done."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from holdfast.models.alert import Alert, AlertKind, IncidentClass
from holdfast.models.machine import Scope


def asks_for(alerts: Iterable[Alert], machines: Collection[str]) -> bool:
    """Return whether people asked for the eviction of all of ``machines``."""
    asked = {alert.machine for alert in alerts if _asks(alert)}
    return bool(machines) and set(machines) <= asked


def scope(alerts: Sequence[Alert], answers: Sequence[Mapping[str, Any]], machine: str) -> Scope | None:
    """Return the scope that a person named for the machine's eviction, the newest; None: none was named.

    Args:
        alerts: of the incident, oldest first.
        answers: to questions about machines, oldest first: ``target``, ``approve`` and, where one was named, ``scope``.
        machine: its name.
    """
    asked = [alert.evidence.get("scope") for alert in alerts if alert.machine == machine and _asks(alert)]
    given = [each.get("scope") for each in answers if each.get("target") == machine and each.get("approve")]
    named = [Scope(each) for each in (*asked, *given) if each in frozenset(Scope)]
    return named[-1] if named else None


def _asks(alert: Alert) -> bool:
    """Return whether a person, who is named, asked for it: a run or an event may come of an automation."""
    evidence = alert.evidence
    named = bool(evidence.get("by")) and evidence.get("source") != "prefect"
    return alert.kind is AlertKind.MANUAL and named and evidence.get("class") == IncidentClass.MACHINE_FAULT

"""Evictions that a person asked for: no person is asked whether they may be done."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from holdfast.models.alert import BESIDE_TRAINING, Alert, AlertKind, Incident, IncidentClass
from holdfast.models.classes import ON_PURPOSE
from holdfast.models.history import Action
from holdfast.models.machine import Scope

_BEGINS = frozenset({"pause", "again"})
_PAST = frozenset({"swap", "shrink", "start"})
"""Acts from which on a machine that is evicted would have to be replaced once more."""


def asks_for(alerts: Iterable[Alert], machines: Collection[str]) -> bool:
    """Return whether people asked for the eviction of all of ``machines``."""
    asked = {alert.machine for alert in alerts if _asks(alert)}
    return bool(machines) and set(machines) <= asked


def asked(alerts: Iterable[Alert], present: Mapping[str, str]) -> dict[str, str]:
    """Return the machines whose eviction people asked for in their present life, and who asked why.

    Args:
        alerts: of the incident, oldest first.
        present: incarnations of the machines that serve the job.
    """
    found: dict[str, str] = {}
    for alert in alerts:
        life = present.get(alert.machine or "")
        if alert.machine and life is not None and alert.incarnation in (None, life) and _asks(alert):
            found.setdefault(
                alert.machine, f"{alert.evidence['by']} asked for it: {alert.evidence.get('text')}"
            )
    return found


def joins(alert: Alert, acting: Incident, actions: Sequence[Action]) -> bool:
    """Return whether the playbook at work takes the machine out beside its own work: the job is stopped once for both.

    Not where it takes none out (a move, another size, new code), and not once it has begun to start the job again.

    Args:
        alert: a person's request.
        acting: the job's open incident.
        actions: its own, oldest first.
    """
    known = acting.incident_class in tuple(IncidentClass)
    if not _asks(alert) or not known or acting.incident_class in ON_PURPOSE | BESIDE_TRAINING:
        return False
    begins = [index for index, action in enumerate(actions) if action.kind in _BEGINS]
    now = actions[begins[-1] :] if begins else actions
    return all(action.kind not in _PAST for action in now)


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

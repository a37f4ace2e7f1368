"""Signals that end the work on an incident whose job trains on: what they show comes first, with its own playbook.

A search for a slow machine takes minutes, and an approval hours. The job trains meanwhile; when a rank dies, everything
waits for it. What a person wants done now does not wait for it either.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from holdfast.models.alert import (
    BESIDE_TRAINING,
    Alert,
    AlertKind,
    Classification,
    Incident,
    IncidentClass,
)
from holdfast.models.history import Action, ActionState
from holdfast.policies.classify import sure_signs
from holdfast.policies.config.policy import ClassifyPolicy

TRAINS_ON = frozenset({IncidentClass.FAIL_SLOW, IncidentClass.SILENT_CORRUPTION})
"""Classes whose playbooks look, or ask a person, while the job trains."""
_ENDS = frozenset({AlertKind.RANK_EXIT, AlertKind.HANG, AlertKind.MACHINE_LOST, AlertKind.NON_FINITE})
"""Kinds that say that training is over, or worth nothing."""
_CORRUPTS = frozenset({AlertKind.METRIC_JUMP, AlertKind.REPLICA_DIFFERS})
"""Kinds that outweigh a slow pace."""
_STOPS = frozenset({"hold", "pause"})
"""Actions from which on the playbook stops the job and starts it again by itself."""


def may(alert: Alert, acting: Incident, actions: Sequence[Action], policy: ClassifyPolicy) -> bool:
    """Return whether ``alert`` may end the work on the open incident ``acting``.

    Only while that incident leaves the job alone: once it stops the job, the alert is evidence beside it. A machine
    that surely fails is evidence too, and ends the work only where a person's answer is waited for.
    """
    if acting.incident_class not in TRAINS_ON or not leaves_alone(acting, actions):
        return False
    if alert.kind in (AlertKind.MANUAL, AlertKind.CODE_UPDATE):
        return _stops(alert)
    if alert.kind in _CORRUPTS:
        return acting.incident_class is IncidentClass.FAIL_SLOW
    if alert.kind in _ENDS:
        return True
    asks = any(each.kind == "approve" and each.state is ActionState.INTENT for each in actions)
    return asks and sure_signs.is_sure(alert, policy)


def leaves_alone(acting: Incident, actions: Sequence[Action]) -> bool:
    """Return whether the job of an open incident has trained on so far."""
    beside = acting.incident_class in TRAINS_ON or acting.incident_class in BESIDE_TRAINING
    return beside and not _stopped(actions)


def left_running(acting: Incident, actions: Sequence[Action]) -> bool:
    """Return whether the job of an incident trains: its playbook stopped nothing, and no alert shows that it stands."""
    looks = acting.incident_class in TRAINS_ON or of_a_package(acting)
    return looks and not _stopped(actions) and not ended(acting.alerts, acting.epoch)


def may_start_again(acting: Incident, actions: Sequence[Action]) -> bool:
    """Return whether a job that a playbook stopped may be started as it is, when all runs of the incident failed.

    Where the playbook is another package's: at once where the job trained until then, else after a wait. It is the
    playbook that is broken, and nothing else starts the job again.
    """
    waited = any(action.kind == "again" for action in actions)
    return of_a_package(acting) and (waited or not ended(acting.alerts, acting.epoch))


def of_a_package(acting: Incident) -> bool:
    """Return whether the playbook of the incident's class is another package's."""
    return acting.incident_class not in tuple(IncidentClass)


def _stopped(actions: Sequence[Action]) -> bool:
    return any(action.kind in _STOPS for action in actions)


def _stops(asked: Alert) -> bool:
    """Return whether a person asks for something for which the job is started again; not what grows by itself."""
    wanted = str(asked.evidence.get("class") or "")
    return wanted not in (*TRAINS_ON, *BESIDE_TRAINING) and not asked.evidence.get("grown")


def ended(alerts: Iterable[Alert], epoch: int) -> bool:
    """Return whether one of an incident's alerts shows that its epoch trains no more."""
    return any(alert.kind in _ENDS and alert.epoch in (None, epoch) for alert in alerts)


def handed_over(acting: Incident, to: Classification) -> str:
    """Return the summary of the incident that ends."""
    why = to.reasons[0] if to.reasons else to.incident_class.value
    return (
        f"{_cause(acting)}. Handed over to a {to.incident_class.value}, which comes first: {why}. "
        "Nothing was evicted for it; a job that is slow or wrong afterwards is found again"
    )


def taken_over(acting: Incident) -> str:
    """Return a line for the report of the incident that begins."""
    return f"{acting.id} ({acting.incident_class.value}) was worked on until then: {_cause(acting)}"


def _cause(incident: Incident) -> str:
    return incident.reasons[0] if incident.reasons else incident.incident_class.value

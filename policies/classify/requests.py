"""Classes that a person or a scheduler asks for: a report by hand, a code update, a planned move."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.models.alert import (
    Alert,
    AlertKind,
    Classification,
    IncidentClass,
)
from holdfast.policies.classify.decision import JobContext
from holdfast.policies.classify.meaning import harmless
from holdfast.policies.config.policy import Policy
from holdfast.policies.pool import planned_move


def manual(alerts: Sequence[Alert]) -> Classification | None:
    """Classify what a person reported by hand."""
    manual = next((alert for alert in alerts if alert.kind is AlertKind.MANUAL), None)
    if manual is None:
        return None
    wanted = IncidentClass(manual.evidence.get("class") or IncidentClass.JOB_CRASH)
    request = f"{manual.evidence.get('by') or 'an unnamed person'} asked for {wanted.value}"
    reasons = [f"{request}: {manual.evidence['text']}" if manual.evidence.get("text") else request]
    if wanted is IncidentClass.MACHINE_FAULT and manual.machine is None:
        wanted = IncidentClass.JOB_CRASH
        reasons.append("no machine was named, so it is diagnosed as a crash")
    return Classification(
        incident_class=wanted,
        confidence=1.0,
        machine=manual.machine,
        rank=manual.rank,
        reasons=tuple(reasons),
        root=manual.key,
    )


def update(alerts: Sequence[Alert], context: JobContext) -> Classification | None:
    """Classify a code update. One to the version that is running already is none: the job is not restarted for it."""
    updates = [alert for alert in alerts if is_update(alert)]
    if not updates or _runs_already(updates[-1], context):
        return None
    newest = updates[-1]
    return Classification(
        incident_class=IncidentClass.CODE_UPDATE,
        confidence=1.0,
        reasons=(f"update to {newest.evidence.get('version')} ({newest.evidence.get('when', 'now')})",),
        root=newest.key,
    )


def move(alerts: Sequence[Alert], context: JobContext, policy: Policy) -> Classification | None:
    """Classify a request to leave a machine of the job, or a sign that it will fail, where the policy acts on it."""
    kinds = {AlertKind.PLANNED_MOVE, *policy.planned_move.precursors}
    wanted = [
        each
        for each in alerts
        if each.kind in kinds and each.machine in context.job.machines and not harmless(each)
    ]
    if not wanted:
        return None
    # What is asked for outweighs a sign.
    found = min(wanted, key=lambda each: each.kind is not AlertKind.PLANNED_MOVE)
    return Classification(
        incident_class=IncidentClass.PLANNED_MOVE,
        confidence=1.0,
        machine=found.machine,
        reasons=(planned_move.reason(found),),
        root=found.key,
    )


def is_update(alert: Alert) -> bool:
    """Return whether it asks for another code version."""
    return alert.kind is AlertKind.CODE_UPDATE


def _runs_already(update: Alert, context: JobContext) -> bool:
    return update.evidence.get("version") == context.job.code_version

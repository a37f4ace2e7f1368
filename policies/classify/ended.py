"""Classes of a process that died by itself: the signals beside it, or the end of its log, may name the reason."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast.models.alert import (
    Alert,
    AlertKind,
    Classification,
    IncidentClass,
)
from holdfast.models.alert_kinds.meaning import Beside
from holdfast.policies.classify import exits
from holdfast.policies.classify.beside import OF_ALL, described, explaining
from holdfast.policies.classify.decision import JobContext
from holdfast.policies.classify.meaning import CAUSES, meaning
from holdfast.policies.classify.roots import OWN_CAUSES, separate
from holdfast.policies.config.policy import Policy


def of_exits(alerts: Sequence[Alert], context: JobContext, policy: Policy) -> Classification | None:
    """Classify a process that died by itself; signals beside it on its machine may explain why."""
    found = exits.root_cause(alerts, context.job, context.code_changed_at, policy.classify)
    if found is None:
        return None
    roots = separate(alerts).roots
    root = next((alert for alert in roots if alert.rank == found.rank), roots[0])
    first, *more = found.reasons
    ended = [rank for rank in context.ended if rank != found.rank]
    reason = f"{first}, after {len(ended)} other ranks had ended with status 0" if ended else first
    found = found.model_copy(update={"root": root.key, "reasons": (reason, *more)})
    if found.incident_class is not IncidentClass.JOB_CRASH:
        return found
    beside = explaining(alerts, {Beside.EXIT, _how(root)}, found.machine, policy)
    row = meaning(beside, policy.classify) if beside else None
    if beside is None or row is None or (row.means in OF_ALL and _own_cause(root)):
        return _by_cause(found, root)
    return found.model_copy(
        update={
            "incident_class": row.means,
            "confidence": max(found.confidence, row.confidence),
            "reasons": (*found.reasons, described(beside)),
        }
    )


def after_others(alert: Alert, context: JobContext) -> Alert:
    """Return a rank's exit with the number of ranks that had ended with status 0 by then; any other alert as it is."""
    ended = sum(rank != alert.rank for rank in context.ended)
    if alert.kind is not AlertKind.RANK_EXIT or not ended:
        return alert
    return alert.model_copy(update={"evidence": {**alert.evidence, "ended_before": ended}})


def _how(root: Alert) -> Beside:
    if root.evidence.get("signal") == "SIGKILL":
        return Beside.KILLED
    return Beside.EXIT if root.evidence.get("signal") else Beside.RAISED


def _own_cause(root: Alert) -> bool:
    """Return whether its last log lines name a cause that no outside service has."""
    return root.evidence.get("cause") in OWN_CAUSES | {"numeric"}


def _killed(root: Alert) -> bool:
    """Return whether it was killed in the midst of its work: neither numbers nor a service outside do that."""
    evidence = root.evidence
    return evidence.get("signal") not in (None, "", "SIGABRT") and evidence.get("failed_at") is None


def _by_cause(found: Classification, root: Alert) -> Classification:
    """Reclassify by the cause that the rank's last log lines may name."""
    cause = str(root.evidence.get("cause") or "")
    if cause not in CAUSES:
        return found
    if CAUSES[cause] in OF_ALL and _killed(root):
        return found
    means, reason = CAUSES[cause], f"the end of its log points to {cause.replace('_', ' ')}"
    if message := str(root.evidence.get("message") or ""):
        reason = f"{reason}: {message[:200]}"
    changed: dict[str, Any] = {"incident_class": means, "reasons": (*found.reasons, reason)}
    if means in OF_ALL:
        changed |= {"machine": None, "rank": None}
    return found.model_copy(update=changed)

"""Screening of alerts: those may act that are firing, of this job, of its present epoch and machines, once each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from holdfast.models.alert import Alert, AlertKind, IncidentClass
from holdfast.models.base import Frozen
from holdfast.models.job import ENDED, Job
from holdfast.policies.config.policy import ClassifyPolicy


class Screened(Frozen):
    """Alerts that may act, in an order of their own, and the reasons against the others."""

    kept: tuple[Alert, ...]
    dropped: tuple[str, ...]


def screen(
    alerts: Iterable[Alert], job: Job, now: float, incarnations: Mapping[str, str], policy: ClassifyPolicy
) -> Screened:
    """Drop alerts that must not act; sort the rest by time, key and content, so that arrival order does not matter."""
    kept: dict[str, Alert] = {}
    dropped: list[str] = []
    for alert in sorted(alerts, key=lambda item: (item.at, item.key, item.firing, item.model_dump_json())):
        key = identity(alert, policy)
        why = _refusal(alert, job, now, incarnations, policy)
        if why is None and key in kept:
            why = "is a duplicate"
        if why is None:
            kept[key] = alert
        else:
            dropped.append(f"ignored: {alert.kind.value}{_where(alert)} {why}")
    return Screened(kept=tuple(kept.values()), dropped=tuple(dict.fromkeys(dropped)))


def identity(alert: Alert, policy: ClassifyPolicy) -> str:
    """Return a key that two reports of one signal share; a monitor's network check counts each time it fails."""
    if not alert.fingerprint and alert.evidence.get("check") in policy.network_checks:
        return f"{alert.key}:{alert.at:.3f}"[:300]
    return alert.key


def _refusal(
    alert: Alert, job: Job, now: float, incarnations: Mapping[str, str], policy: ClassifyPolicy
) -> str | None:
    if not alert.firing:
        return "is resolved"
    if job.state in ENDED:
        return f"came for job {job.name}, which is {job.state.value}"
    if alert.job is not None and alert.job != job.name:
        return f"is of job {alert.job}, not {job.name}"
    return (
        _refused_machine(alert, job, incarnations)
        or _refused_age(alert, job, now, policy)
        or _refused_class(alert)
    )


def _refused_machine(alert: Alert, job: Job, incarnations: Mapping[str, str]) -> str | None:
    if alert.machine is None:
        return None if alert.job is not None else "names neither job nor machine"
    if alert.machine not in job.machines:
        return f"is of machine {alert.machine}, which job {job.name} does not use"
    present = incarnations.get(alert.machine)
    if present and alert.incarnation and alert.incarnation != present:
        return f"is of an old incarnation of machine {alert.machine}"
    return None


def _refused_age(alert: Alert, job: Job, now: float, policy: ClassifyPolicy) -> str | None:
    if alert.epoch is not None:
        return f"is of epoch {alert.epoch}; the job is in {job.epoch}" if alert.epoch < job.epoch else None
    if alert.kind is not AlertKind.CODE_UPDATE and now - alert.at > policy.max_age_s:
        return f"is {now - alert.at:.0f} s old (limit {policy.max_age_s:g} s)"
    return None


def _refused_class(alert: Alert) -> str | None:
    wanted = alert.evidence.get("class")
    known = IncidentClass.all_names()
    if alert.kind is AlertKind.MANUAL and wanted and wanted not in known:
        return f"asks for class {wanted!r}; expected one of {', '.join(known)}"
    return None


def _where(alert: Alert) -> str:
    rank = f" rank {alert.rank}" if alert.rank is not None else ""
    return f"{rank} on {alert.machine}" if alert.machine else rank

"""Admission of alerts: which may be looked at at all. They are firing, about something known, and of the present.

The gateway asks when an alert comes. What may change until it is decided about, the job's epoch and machines, the
classification asks again (:func:`of_the_present`).
"""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.errors import NotFiringError, StaleError, UnknownError
from holdfast.models.alert import HUMAN_KINDS, MACHINE_KINDS, Alert, AlertKind, IncidentClass, IncidentState
from holdfast.models.job import ENDED, Job, JobState
from holdfast.models.machine import Machine

_OF_THE_PACE = frozenset(
    {AlertKind.HANG, AlertKind.STRAGGLER, AlertKind.MFU_DECLINE, AlertKind.THROUGHPUT_DECLINE}
)
"""Kinds that a hold itself explains."""
_LATEST_S = 1e11
"""Unix seconds of the year 5138, which no clock shows; as milliseconds it is 1973."""


def must_fire(alert: Alert, now: float, max_age_s: float) -> None:
    """Refuse what is over, and what does not say when it was.

    Raises:
        NotFiringError: it is resolved; it is too old, with no epoch and no incarnation; its time is not in seconds.
    """
    if not alert.firing:
        raise NotFiringError(f"alert {alert.key!r} is resolved: nothing is done for it")
    if alert.at > _LATEST_S:  # it would never be too old
        raise NotFiringError(
            f"alert {alert.key!r}: at = {alert.at:.0f} is no Unix time in seconds; divide milliseconds by 1000 "
            f"({now:.0f} is now)"
        )
    fenced = alert.epoch is not None or alert.incarnation is not None
    if not fenced and now - alert.at > max_age_s:
        raise NotFiringError(
            f"alert {alert.key!r} is {now - alert.at:.0f} s old (limit {max_age_s:.0f} s) and names no epoch"
        )


def as_of_now(alert: Alert, now: float) -> Alert:
    """Return the alert, dated now where its sender's clock is ahead and it names no life of the machine.

    It would be of the machine's next life too: a machine that was repaired and released went out again for it.
    """
    if alert.epoch is not None or alert.incarnation is not None:
        return alert
    return alert.model_copy(update={"at": min(alert.at, now)})


def must_be_present(alert: Alert, machine: Machine | None) -> None:
    """Refuse what an earlier life of the machine did.

    Raises:
        StaleError: the incarnation was replaced, or the machine registered again after the alert.
    """
    if machine is None:
        return
    if alert.incarnation is not None and alert.incarnation != machine.incarnation:
        raise StaleError(
            f"alert {alert.key!r}: incarnation {alert.incarnation!r} of machine {machine.name} was replaced"
        )
    if alert.incarnation is None and alert.at < machine.registered_at and alert.kind not in HUMAN_KINDS:
        raise StaleError(f"alert {alert.key!r} is from before machine {machine.name} was registered")


def must_be_of_job(alert: Alert, job: Job, machine: Machine | None) -> None:
    """Refuse what is not about this job as it stands.

    Raises:
        UnknownError: no such rank, or not on that machine.
        StaleError: the machine left the job, or the epoch has not begun.
    """
    if alert.rank is not None and not 0 <= alert.rank < job.spec.world_size:
        raise UnknownError(f"job {job.name} has no rank {alert.rank}: it has {job.spec.world_size}")
    if machine is not None and (machine.name not in job.machines or machine.job != job.name):
        where = f"in job {machine.job}" if machine.job else machine.state.value
        raise StaleError(f"alert {alert.key!r}: machine {machine.name} is not in job {job.name}, but {where}")
    by_hand = alert.kind is AlertKind.MANUAL and alert.rank is not None
    if machine is not None and by_hand and alert.rank not in job.ranks_of(machine.name):
        raise UnknownError(
            f"rank {alert.rank} of job {job.name} is not on {machine.name}: name one of the two"
        )
    if alert.epoch is not None and alert.epoch > job.epoch:
        raise StaleError(
            f"alert {alert.key!r}: job {job.name} has no epoch {alert.epoch} (newest: {job.epoch})"
        )


def must_be_newest(alert: Alert, job: Job, epoch_opened_at: float) -> None:
    """Refuse what an earlier epoch did, unless it is about the open incident of that epoch.

    Raises:
        StaleError: the job went on since.
    """
    if _is_of_earlier_epoch(alert, job):
        raise StaleError(f"alert {alert.key!r}: job {job.name} went on to epoch {job.epoch}")
    timeless = alert.kind in MACHINE_KINDS or alert.kind in HUMAN_KINDS
    if alert.epoch is None and not timeless and alert.at < epoch_opened_at:
        raise StaleError(f"alert {alert.key!r} is from before epoch {job.epoch} of job {job.name}")


def of_the_present(alerts: Iterable[Alert], job: Job) -> tuple[tuple[Alert, ...], tuple[str, ...]]:
    """Return those of admitted alerts that are still about the job as it stands, and why the others are not."""
    kept, dropped = [], []
    for alert in alerts:
        if why := _why_past(alert, job):
            dropped.append(f"ignored: {alert.kind.value}{_where(alert)} {why}")
        else:
            kept.append(alert)
    return tuple(kept), tuple(dict.fromkeys(dropped))


def _why_past(alert: Alert, job: Job) -> str:
    if alert.machine is not None and alert.machine not in job.machines:
        return f"is of machine {alert.machine}, which job {job.name} does not use"
    if _is_of_earlier_epoch(alert, job):
        return f"is of epoch {alert.epoch}; the job is in {job.epoch}"
    return ""


def _is_of_earlier_epoch(alert: Alert, job: Job) -> bool:
    return alert.epoch is not None and alert.epoch < job.epoch


def _where(alert: Alert) -> str:
    rank = f" rank {alert.rank}" if alert.rank is not None else ""
    return f"{rank} on {alert.machine}" if alert.machine else rank


def why_kept(alert: Alert, job: Job) -> str:
    """Return why the alert is to be acted on later: a person holds the job; empty: it is not."""
    if job.state is not JobState.PAUSED or alert.kind in HUMAN_KINDS or alert.kind in _OF_THE_PACE:
        return ""
    return f"job {job.name} is held by a person: acted on when the hold ends"


def why_ignored(alert: Alert, job: Job, last: IncidentState | None) -> str:
    """Return why no incident is opened for this alert of a job without an open incident; empty: one may be.

    ``last`` is the state of the job's newest incident.
    """
    if job.state in ENDED:
        return f"job {job.name} is {job.state}"
    if alert.kind is AlertKind.MANUAL and (wanted := alert.evidence.get("class")):
        known = IncidentClass.all_names()
        if wanted not in known:
            return f"it asks for class {wanted!r}; expected one of {', '.join(known)}"
    if alert.kind in HUMAN_KINDS and (
        alert.kind is not AlertKind.PLANNED_MOVE or job.state is JobState.RECOVERING
    ):
        return ""
    if job.state is JobState.PAUSED:
        return f"job {job.name} is paused: its ranks are held or stopped on purpose"
    if job.state is JobState.RECOVERING and last is IncidentState.NEEDS_HUMAN:
        return f"job {job.name} waits for a human"
    return ""

"""Incidents of replicas that failed wherever they were tried: a person is asked, and the job trains on."""

from __future__ import annotations

from holdfast.models.alert import Alert, AlertKind, Classification, IncidentClass, IncidentState
from holdfast.models.job import Job
from holdfast.models.roles import PlacesOfJob, ReplicaPlace
from holdfast.policies.roles.decide import RETRY_S
from holdfast.storage.ledger import Ledger

_LOOK_BACK = 100


def record(ledger: Ledger, job: Job, before: PlacesOfJob, after: PlacesOfJob) -> PlacesOfJob:
    """Open an incident for each replica that a person is newly asked about, close those of replicas that work again.

    Blocks for the ledger. Returns ``after`` with the names of new incidents.
    """
    were = {(each.role, each.index): each.incident for each in before.places}
    now = {(each.role, each.index): each for each in after.places}
    for key, incident in were.items():
        if incident and (key not in now or not now[key].incident):
            became = "works again" if key in now else "is not wanted any more"
            _close(ledger, incident, f"{key[0]} {key[1]} {became}")
    result = after
    for place in after.places:
        if place.asked and not place.incident:
            named = place.model_copy(update={"incident": _opened(ledger, job, place)})
            others = tuple(each for each in result.of(place.role) if each.index != place.index)
            result = result.with_role(place.role, (*others, named))
    return result


def dropped(ledger: Ledger, job: str, places: PlacesOfJob) -> None:
    """Close the incidents of a former job of this name, whose places are to be forgotten. Blocks for the ledger."""
    for each in places.places:
        if each.incident:
            _close(
                ledger, each.incident, f"job {job} was submitted again: {each.role} {each.index} starts again"
            )


def _close(ledger: Ledger, incident: str, summary: str) -> None:
    """Close it, unless a person has: what was decided about it stays."""
    if ledger.incident(incident).state is IncidentState.NEEDS_HUMAN:
        ledger.set_incident(incident, state=IncidentState.RECOVERED, summary=summary)


def _opened(ledger: Ledger, job: Job, place: ReplicaPlace) -> str:
    found = f"{place.role} {place.index}: {place.asked}"
    fingerprint = f"role:{job.name}:{place.role}:{place.index}:{place.generation}"
    for known in ledger.incidents(job.name, IncidentState.NEEDS_HUMAN, limit=_LOOK_BACK):
        if any(alert.fingerprint == fingerprint for alert in known.alerts):
            return known.id
    alert = Alert(
        kind=AlertKind.MANUAL,
        job=job.name,
        at=place.asked_at,
        fingerprint=fingerprint,
        evidence={
            "class": IncidentClass.JOB_CRASH.value,
            "by": "holdfast",
            "text": found,
            "role": place.role,
            "index": place.index,
        },
    )
    classified = Classification(incident_class=IncidentClass.JOB_CRASH, confidence=1.0, reasons=(found,))
    summary = (
        f"{found}. The job trains on without this replica, which is tried again in {RETRY_S / 60:.0f} minutes. Its log "
        f"is logs/{job.name}/{place.role}-{place.index}-g{place.generation}.log on the machine"
    )
    return ledger.open_incident(job.name, classified, job.epoch, [alert], place.asked_at, asks=summary).id

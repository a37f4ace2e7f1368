"""Facts of the ledger about a job at one moment, read together."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace

from holdfast.errors import StaleError
from holdfast.models.alert import BESIDE_TRAINING, Incident, IncidentClass, IncidentState
from holdfast.models.history import Epoch
from holdfast.models.job import Job
from holdfast.models.machine import Machine
from holdfast.storage.ledger import Ledger


@dataclass(frozen=True)
class Facts:
    """A job and its incidents."""

    job: Job
    machine: Machine | None
    """The machine that was asked for."""
    acting: Incident | None
    """The oldest open incident, without its alerts."""
    last_state: IncidentState | None
    """State of the acting, else of the newest incident."""
    epoch_opened_at: float
    """When the newest epoch was opened; 0.0 before the first."""
    code_changed_at: float | None
    """When the running code version was switched to; None: never since the submission."""
    yields: Incident | None = None
    """An incident of a job that trains on, worked on until what is looked at now is known to come first."""

    def of_what_stops(self) -> Facts:
        """Return the facts without an incident beside the training: such an incident gives way to any other."""
        beside = self.acting is not None and self.acting.incident_class in BESIDE_TRAINING
        return replace(self, acting=None, last_state=None) if beside else self

    def of_what_overtakes(self) -> Facts:
        """Return the facts with the incident that is worked on as one that yields."""
        return replace(self, acting=None, last_state=None, yields=self.acting)


def give_way(ledger: Ledger, job: str, to: str, now: float) -> None:
    """Close the incident beside the training that is being worked on, if there is one (blocking)."""
    acting = ledger.acting(job, evidence=False)
    if acting is None or acting.incident_class not in BESIDE_TRAINING:
        return
    found = "; ".join(acting.reasons)
    if acting.incident_class is IncidentClass.PLANNED_MOVE:
        state = IncidentState.DISMISSED
        if acting.machine is None or acting.machine in ledger.job(job).machines:
            again = "A notice that stands is taken up again; else `holdfast move` asks"
            summary = f"{found}. Not moved: {to} came first. {again}"
        else:
            summary = f"{found}. The job had left {acting.machine} when {to} came"
    else:
        state = IncidentState.NEEDS_HUMAN
        summary = f"{found}. Not diagnosed further: {to} came first. `holdfast doctor {job}` shows more"
    with contextlib.suppress(StaleError):  # its playbook has just ended it: that stays
        ledger.end_incident(acting.id, state, summary, now)


def gather(ledger: Ledger, job_name: str, machine_name: str | None) -> Facts:
    """Read them (blocking).

    Raises:
        UnknownError: no such job or machine.
    """
    job = ledger.job(job_name)
    acting = ledger.acting(job_name, evidence=False)
    newest = [acting] if acting else ledger.incidents(job=job_name, limit=1, evidence=False)
    listed = ledger.epochs(job_name, machines=False)  # for each alert, under the job's lock
    epochs = [epoch for epoch in listed if epoch.opened_at >= job.submitted_at]
    return Facts(
        job=job,
        machine=ledger.machine(machine_name) if machine_name else None,
        acting=acting,
        last_state=newest[0].state if newest else None,
        epoch_opened_at=epochs[-1].opened_at if epochs else 0.0,
        code_changed_at=_code_changed_at(epochs),
    )


def _code_changed_at(epochs: list[Epoch]) -> float | None:
    """Start of the first epoch of the newest unbroken run of one version."""
    for before, after in zip(reversed(epochs[:-1]), reversed(epochs), strict=False):
        if before.code_version != after.code_version:
            return after.opened_at
    return None

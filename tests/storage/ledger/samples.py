"""Jobs, machines, alerts to fill ledgers with."""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.models.agent import Register
from holdfast.models.alert import Alert, AlertKind, Classification, Finding, Incident, IncidentClass
from holdfast.models.job import Job, JobSpec, JobState
from holdfast.models.machine import Machine
from holdfast.storage.ledger import Ledger


def spec(name: str = "gpt", machines: int = 4) -> JobSpec:
    return JobSpec(name=name, script="train.py", machines=machines, ranks_per_machine=2)


def running_job(ledger: Ledger, name: str = "gpt") -> Job:
    ledger.add_job(spec(name), "v1")
    return ledger.set_job(name, state=JobState.RUNNING)


def register(
    ledger: Ledger,
    name: str,
    incarnation: str = "i1",
    checks: tuple[Finding, ...] = (),
    location: Mapping[str, str] | None = None,
) -> tuple[Machine, Machine | None]:
    return ledger.register(
        Register(
            machine=name,
            incarnation=incarnation,
            address="127.0.0.1:1",
            data_address="127.0.0.1:2",
            pid=1,
            checks=checks,
            location=location or {},
        )
    )


def alert(rank: int = 0, epoch: int | None = 1, **evidence: object) -> Alert:
    return Alert(
        kind=AlertKind.RANK_EXIT, job="gpt", machine="m0", rank=rank, epoch=epoch, at=5.0, evidence=evidence
    )


def classified(kind: IncidentClass = IncidentClass.JOB_CRASH, machine: str | None = "m0") -> Classification:
    return Classification(incident_class=kind, confidence=0.7, machine=machine, rank=0, reasons=("because",))


def incident(ledger: Ledger, kind: IncidentClass = IncidentClass.JOB_CRASH, job: str = "gpt") -> Incident:
    return ledger.open_incident(job, classified(kind), 1, [alert()], detected_at=6.0)

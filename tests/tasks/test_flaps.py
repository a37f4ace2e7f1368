"""Machines that flap, found from the ledger."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.clock import FakeClock
from holdfast.models.alert import Alert, AlertKind, Classification, IncidentClass, IncidentState
from holdfast.models.job import JobSpec, JobState
from holdfast.operations import flaps
from holdfast.policies.config.policy import Policy
from holdfast.storage.ledger import Ledger
from tests.tasks.two_machines import register


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(1_000.0)


@pytest.fixture
def ledger(tmp_path: Path, clock: FakeClock) -> Iterator[Ledger]:
    """Of two jobs on two machines each."""
    ledger = Ledger(f"sqlite:///{tmp_path / 'ledger.db'}", clock)
    ledger.create()
    for job, names in (("gpt", ("m0", "m1")), ("bert", ("m2", "m3"))):
        for name in names:
            register(ledger, name)
        ledger.add_job(JobSpec(name=job, script="t.py", machines=2, ranks_per_machine=1), "v1")
        ledger.set_job(job, machines=names, state=JobState.RUNNING)
        ledger.next_epoch(job)
    yield ledger
    ledger.close()


def dies(ledger: Ledger, clock: FakeClock, job: str, machine: str, signal: str = "SIGKILL") -> None:
    """The machine's rank, five minutes after the last one; the job goes on at a later step."""
    clock.advance(300.0)
    epoch = ledger.job(job).epoch
    ledger.open_epoch(job, epoch, epoch * 20 - 10, "v1", ledger.job(job).machines, "test")
    ledger.mark(job, epoch, epoch * 20, clock.now())
    alert = Alert(
        kind=AlertKind.RANK_EXIT,
        job=job,
        machine=machine,
        rank=1,
        epoch=epoch,
        at=clock.now(),
        evidence={"signal": signal},
    )
    found = Classification(incident_class=IncidentClass.JOB_CRASH, confidence=0.9, reasons=("test",))
    incident = ledger.open_incident(job, found, epoch, [alert], clock.now())
    ledger.record_alert(alert, incident.id, "opened")
    ledger.end_incident(incident.id, IncidentState.RECOVERED, "went on", clock.now())
    ledger.next_epoch(job)


def test_ranks_that_die_on_one_machine_alone_are_its_fault(ledger: Ledger, clock: FakeClock) -> None:
    for _ in range(3):
        dies(ledger, clock, "gpt", "m1")
    dies(ledger, clock, "bert", "m3")
    dies(ledger, clock, "bert", "m3", "SIGSEGV")
    assert list(flaps.find(ledger, ["m1", "m3"], clock.now(), Policy.load())) == ["m1"]


def test_ranks_that_die_alike_in_two_jobs_are_no_machines_fault(ledger: Ledger, clock: FakeClock) -> None:
    """A killer of processes on every host took a machine of each job that it struck."""
    for _ in range(3):
        dies(ledger, clock, "gpt", "m1")
        dies(ledger, clock, "bert", "m3")
    assert flaps.find(ledger, ["m1", "m3"], clock.now(), Policy.load()) == {}

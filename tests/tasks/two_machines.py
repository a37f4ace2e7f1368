"""A job of two machines with a rank each that trains in its first epoch, and the case of an incident of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from holdfast.clock import FakeClock
from holdfast.models.alert import Alert, Classification, IncidentClass
from holdfast.models.job import JobSpec, JobState
from holdfast.operations.context import Context
from holdfast.settings import Settings
from holdfast.tasks.context import use
from holdfast.tasks.recovery_context import RecoveryContext
from holdfast.testing.play import without_prefect
from tests.storage.ledger.samples import register

JOB = "gpt"


def running_job(folder: Path) -> Context:
    """The services of a site that has the job, at a clock of the test's own."""
    ctx = Context(Settings(home=folder), clock=FakeClock(1_000.0))
    ctx.ledger.create()
    for name in ("m0", "m1"):
        register(ctx.ledger, name)
    ctx.ledger.add_job(JobSpec(name=JOB, script="t.py", machines=2, ranks_per_machine=1), "v1")
    ctx.ledger.set_job(JOB, machines=("m0", "m1"), state=JobState.RUNNING)
    ctx.ledger.next_epoch(JOB)
    return ctx


@contextmanager
def in_use(folder: Path) -> Iterator[Context]:
    """That site, as tasks find it."""
    ctx = running_job(folder)
    use(ctx)
    yield ctx
    use(None)


@contextmanager
def played(folder: Path) -> Iterator[Context]:
    """That site, as playbooks find it that are called without a Prefect server."""
    with in_use(folder) as ctx, without_prefect():
        yield ctx


def case_of(ctx: Context, incident_class: IncidentClass, *alerts: Alert) -> RecoveryContext:
    """The first attempt at an incident that these alerts opened in the first epoch."""
    found = Classification(incident_class=incident_class, confidence=1.0, reasons=("x",))
    incident = ctx.ledger.open_incident(JOB, found, 1, alerts, 1_000.0)
    return RecoveryContext(
        incident_id=incident.id,
        attempt=1,
        job=JOB,
        incident_class=incident.incident_class,
        broken_epoch=1,
    ).within(ctx)

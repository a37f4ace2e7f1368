"""The job's lease passes from the gateway's head start to the playbook."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.clock import FakeClock
from holdfast.errors import RefusedError, StaleError
from holdfast.models.alert import Classification, Incident, IncidentClass, IncidentState
from holdfast.models.job import Job, JobSpec, Mode
from holdfast.models.lease import HEAD_START, HEAD_START_S
from holdfast.operations import head_start as starting
from holdfast.operations.context import Context
from holdfast.operations.head_start import head_start
from holdfast.operations.once import Actor
from holdfast.operations.recurrence import Recurrence, recurrence
from holdfast.settings import Settings
from holdfast.storage.ledger import Ledger
from holdfast.tasks import lease
from tests.tasks.two_machines import case_of, running_job


@pytest.fixture
def ctx(tmp_path: Path) -> Iterator[Context]:
    """A job without a machine that answers."""
    ctx = Context(Settings(home=tmp_path), clock=FakeClock(1000.0))
    ledger = Ledger(f"sqlite:///{tmp_path / 'ledger.db'}", ctx.clock)
    ledger.create()
    ctx.__dict__["ledger"] = ledger
    yield ctx
    ledger.close()


def opened(ctx: Context, mode: Mode = Mode.ACT) -> Incident:
    ctx.ledger.add_job(
        JobSpec(name="gpt", script="train.py", machines=2, ranks_per_machine=1, mode=mode), "v1"
    )
    epoch = ctx.ledger.next_epoch("gpt")
    found = Classification(incident_class=IncidentClass.JOB_CRASH, confidence=0.9, reasons=("test",))
    return ctx.ledger.open_incident("gpt", found, epoch, [], 1000.0)


async def test_the_playbook_waits_for_the_head_start(ctx: Context) -> None:
    incident = opened(ctx)
    ctx.ledger.take_job(incident.id, 1, HEAD_START, "gateway", HEAD_START_S)
    taking = asyncio.create_task(lease.take(ctx, incident))
    await asyncio.sleep(0.1)
    assert not taking.done()
    ctx.ledger.release_job("gpt", "gateway")
    holder = await asyncio.wait_for(taking, 30)
    held = ctx.ledger.job_lease("gpt")
    assert held is not None
    assert held.holder == holder


async def test_a_head_start_that_died_is_waited_for_no_longer_than_its_lease(ctx: Context) -> None:
    incident = opened(ctx)
    ctx.ledger.take_job(incident.id, 1, HEAD_START, "gateway", HEAD_START_S)
    ctx.clock.advance(HEAD_START_S + 0.1)  # type: ignore[attr-defined]
    assert await asyncio.wait_for(lease.take(ctx, incident), 30)
    actor = Actor(ctx, incident.id, "gpt", 1, "gateway")
    with pytest.raises(StaleError):  # it only slept: its next act is refused
        await actor.once("pause", "e1", {}, lambda: asyncio.sleep(0, {}))


async def test_another_run_is_not_waited_for(ctx: Context) -> None:
    incident = opened(ctx)
    ctx.ledger.take_job(incident.id, 1, "run-1", "worker", HEAD_START_S)
    with pytest.raises(RefusedError):
        await lease.take(ctx, incident)


async def test_no_head_start_beside_a_playbook_that_was_faster(ctx: Context) -> None:
    incident = opened(ctx)
    ctx.ledger.take_job(incident.id, 1, "run-1", "worker", HEAD_START_S)
    with pytest.raises(RefusedError):
        await head_start(ctx, incident)
    assert not ctx.ledger.actions(incident.id)


@pytest.mark.parametrize("keeps", [False, True])
async def test_the_past_is_read_only_where_ranks_may_keep_their_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keeps: bool
) -> None:
    """Otherwise it decides nothing, and the playbook's run waits for the processors."""
    ctx = running_job(tmp_path)
    read: list[str] = []

    def of_the_job(_ctx: Context, _incident: Incident, job: Job) -> Recurrence:
        read.append(job.name)
        return Recurrence()

    monkeypatch.setattr(starting, "recurrence", of_the_job)
    await head_start(ctx, case_of(ctx, IncidentClass.JOB_CRASH).incident, keeps=keeps)
    assert read == (["gpt"] if keeps else [])


async def test_nothing_is_touched_of_a_job_that_is_observed(ctx: Context) -> None:
    incident = opened(ctx, Mode.OBSERVE)
    await head_start(ctx, incident)
    assert ctx.ledger.job_lease("gpt") is None
    assert not ctx.ledger.actions(incident.id)


@pytest.mark.parametrize(
    ("steps", "apart_s", "expected"),
    [
        ((50,), 60.0, Recurrence()),
        ((5,), 60.0, Recurrence(again=1)),
        ((5,), 7200.0, Recurrence(again=1)),
        ((50, 5), 60.0, Recurrence(again=1)),
        ((5, 50), 60.0, Recurrence()),
        ((50,) * 5, 60.0, Recurrence()),
        ((50,) * 6, 60.0, Recurrence(often=True)),
        ((50,) * 6, 600.0, Recurrence()),
    ],
)
def test_progress_since_the_incident_before_makes_a_failure_a_new_one(
    ctx: Context, steps: tuple[int, ...], apart_s: float, expected: Recurrence
) -> None:
    """``steps``: new ones after each earlier incident; ``apart_s``: time between two."""
    opened(ctx)
    assert recurrence(ctx, ctx.ledger.incidents("gpt")[0], ctx.ledger.job("gpt")) == Recurrence()
    clock, step = ctx.clock, 0
    assert isinstance(clock, FakeClock)
    for new in steps:
        ctx.ledger.set_incident(ctx.ledger.incidents("gpt")[0].id, state=IncidentState.RECOVERED)
        epoch, start, step = ctx.ledger.next_epoch("gpt"), step, step + new
        ctx.ledger.open_epoch("gpt", epoch, start, "v1", [], "test")
        ctx.ledger.mark("gpt", epoch, step, clock.now())
        clock.advance(apart_s)
        found = Classification(incident_class=IncidentClass.JOB_CRASH, confidence=0.9, reasons=("test",))
        ctx.ledger.open_incident("gpt", found, epoch, [], clock.now())
    assert recurrence(ctx, ctx.ledger.incidents("gpt")[0], ctx.ledger.job("gpt")) == expected

"""The search beside the training ends when the training does, and leaves nothing behind."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.clock import FakeClock
from holdfast.errors import RecoveryError
from holdfast.models.agent import Register
from holdfast.models.alert import Alert, AlertKind, Classification, IncidentClass, Verdict
from holdfast.models.history import ActionState
from holdfast.models.job import JobSpec, JobState
from holdfast.operations.context import Context
from holdfast.operations.launch import Launched
from holdfast.settings import Settings
from holdfast.storage.ledger import Ledger
from holdfast.tasks import beside
from holdfast.tasks.context import use
from holdfast.tasks.recovery_context import RecoveryContext
from holdfast.testing.play import without_prefect

LAUNCHED = Launched(epoch=2, step=7, tier=None, reasons=())


@pytest.fixture
def case(tmp_path: Path) -> Iterator[RecoveryContext]:
    """A crash of epoch 1, whose job is in epoch 2; its machines do not answer."""
    ctx = Context(Settings(home=tmp_path), clock=FakeClock(1000.0))
    ledger = Ledger(f"sqlite:///{tmp_path / 'ledger.db'}", ctx.clock)
    ledger.create()
    ctx.__dict__["ledger"] = ledger
    ledger.register(Register(machine="m0", incarnation="i1", address="", data_address="", pid=1))
    ledger.add_job(JobSpec(name="gpt", script="train.py", machines=1, ranks_per_machine=1), "v1")
    ledger.set_job("gpt", machines=["m0"], state=JobState.RUNNING)
    found = Classification(incident_class=IncidentClass.JOB_CRASH, confidence=0.9, reasons=("test",))
    incident = ledger.open_incident("gpt", found, ledger.next_epoch("gpt"), [], 1000.0)
    ledger.next_epoch("gpt")
    use(ctx)
    with without_prefect():
        yield RecoveryContext(
            incident_id=incident.id,
            attempt=1,
            job="gpt",
            incident_class=IncidentClass.JOB_CRASH,
            broken_epoch=1,
        ).within(ctx)
    use(None)
    ledger.close()


async def comes_up(_case: RecoveryContext) -> Launched:
    return LAUNCHED


async def searches(case: RecoveryContext) -> Verdict:
    """Look for ever, at something that is in the ledger."""
    case.ledger.begin(case.incident_id, 1, "check:inspect:e1", "check", {})
    await asyncio.get_running_loop().create_future()
    return Verdict()


def join(case: RecoveryContext, kind: AlertKind, epoch: int) -> None:
    alert = Alert(kind=kind, job="gpt", machine="m0", rank=0, epoch=epoch, at=1001.0)
    case.ctx.ledger.join(case.incident_id, [alert])


async def test_the_search_ends_when_the_new_epoch_does(
    case: RecoveryContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Late words of the broken epoch do not end it, nor does a mere sign; the end of the new one does."""
    monkeypatch.setattr(beside, "resume", comes_up)
    monkeypatch.setattr(beside, "diagnose", searches)
    monkeypatch.setattr(beside, "LOOK_S", 0.01)
    both = asyncio.create_task(beside._both(case))
    join(case, AlertKind.RANK_EXIT, 1)
    join(case, AlertKind.METRIC_JUMP, 2)
    async with asyncio.timeout(60):
        while not case.ctx.ledger.actions(case.incident_id):  # noqa: ASYNC110  (the search has begun)
            await asyncio.sleep(0.01)
    await asyncio.sleep(0.2)
    assert not both.done()
    join(case, AlertKind.RANK_EXIT, 2)
    resumed, verdict, ended = await asyncio.wait_for(both, 30)
    assert (resumed, verdict.suspects) == (LAUNCHED, ())
    assert "epoch 2 trains no more (" in ended
    (check,) = case.ctx.ledger.actions(case.incident_id)
    assert check.state is ActionState.FAILED


async def test_an_epoch_that_does_not_come_up_ends_the_search(
    case: RecoveryContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes up too late to be waited for alone, so the search runs already."""
    searching = asyncio.Event()

    async def fails(_case: RecoveryContext) -> Launched:
        await searching.wait()
        raise RecoveryError("rank 3 ended again")

    async def looks(case: RecoveryContext) -> Verdict:
        searching.set()
        return await searches(case)

    monkeypatch.setattr(beside, "resume", fails)
    monkeypatch.setattr(beside, "diagnose", looks)
    monkeypatch.setattr(beside, "FIRST_STEP_S", 0.01)
    with pytest.raises(RecoveryError, match="ended again"):
        await asyncio.wait_for(beside._both(case), 30)
    assert [each.state for each in case.ctx.ledger.actions(case.incident_id)] == [ActionState.FAILED]


async def test_the_first_step_has_the_machines_to_itself(
    case: RecoveryContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []

    async def comes(_case: RecoveryContext) -> Launched:
        await asyncio.sleep(0.1)
        order.append("first steps")
        return LAUNCHED

    async def looks(_case: RecoveryContext) -> Verdict:
        order.append("checks")
        return Verdict()

    monkeypatch.setattr(beside, "resume", comes)
    monkeypatch.setattr(beside, "diagnose", looks)
    monkeypatch.setattr(beside, "FIRST_STEP_S", 60.0)
    assert await beside._both(case) == (LAUNCHED, Verdict(), "")
    assert order == ["first steps", "checks"]


def test_the_case_as_it_stands_is_of_the_epoch_that_was_stopped_again(case: RecoveryContext) -> None:
    """So that the continuation after a limit, or in another run, starts an epoch after it."""
    ledger = case.ledger

    def done(key: str, **result: Any) -> None:
        ledger.begin(case.incident_id, 1, key, key.partition(":")[0], {})
        ledger.finish(case.incident_id, key, result)

    done("pause:e1")
    assert beside.present(case) is case
    done("start:after-e1", epoch=2)
    assert beside.present(case) is case
    done("pause:e2")
    stopped = beside.present(case)
    assert (stopped.broken_epoch, stopped.life, stopped.again) == (2, "e2", False)
    done("start:after-e2", epoch=3)
    assert beside.present(case).broken_epoch == 2

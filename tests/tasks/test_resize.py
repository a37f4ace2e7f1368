"""Changes of a job's size: the refused ones, and the size to return to when the job does not come up."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from prefect.logging import disable_run_logger

from holdfast.clock import FakeClock
from holdfast.errors import LimitError, NoStandbyError, RecoveryError, RefusedError
from holdfast.models.alert import Alert, AlertKind, IncidentClass, IncidentState
from holdfast.models.job import Elastic, JobSpec, JobState
from holdfast.models.machine import MachineState
from holdfast.models.missing import Missing
from holdfast.operations.context import Context
from holdfast.settings import Settings
from holdfast.tasks import detect, limits, resize, resume
from holdfast.tasks.context import use
from holdfast.tasks.plain import without_prefect
from holdfast.tasks.recovery_context import RecoveryContext, Request
from tests.storage.ledger.samples import register
from tests.tasks.two_machines import JOB, case_of


@pytest.fixture
def ctx(tmp_path: Path) -> Iterator[Context]:
    """Four machines, and a job that wants as many."""
    ctx = Context(Settings(home=tmp_path), clock=FakeClock(1_000.0))
    ctx.ledger.create()
    for number in range(4):
        register(ctx.ledger, f"m{number}")
    sizes = Elastic(min=1, want=4, max=4)
    spec = JobSpec(name=JOB, script="t.py", machines=4, elastic=sizes, ranks_per_machine=1)
    ctx.ledger.add_job(spec, "v1")
    use(ctx)
    yield ctx
    use(None)


def asked_for(ctx: Context, machines: int) -> RecoveryContext:
    alert = Alert(kind=AlertKind.MANUAL, job=JOB, at=1_000.0, evidence={"machines": machines})
    return case_of(ctx, IncidentClass.SCALE_JOB, alert)


async def test_a_job_goes_back_to_the_machines_that_it_had(ctx: Context) -> None:
    """They serve it still."""
    names = [machine.name for machine in ctx.ledger.claim_standbys(JOB, 4)]
    ctx.ledger.set_job(JOB, machines=names, state=JobState.RECOVERING)
    case = asked_for(ctx, 2)
    assert await resize.place.fn(case, 2) == "2 machines instead of 4"
    assert resize.size_before(case) == 4


async def test_a_job_that_had_none_has_no_size_to_go_back_to(ctx: Context) -> None:
    """Its file has four, and two were claimed for it: four would be refused in every further attempt."""
    ctx.ledger.set_job(JOB, machines=(), state=JobState.RECOVERING)
    ctx.ledger.claim_standbys(JOB, 2)
    case = asked_for(ctx, 2)
    assert await resize.place.fn(case, 2) == "2 machines instead of 0"
    assert ctx.ledger.job(JOB).machines == ("m0", "m1")
    assert resize.size_before(case) == 2


async def test_the_size_that_a_job_has_already_is_kept_and_restarts_nothing(ctx: Context) -> None:
    """As `holdfast scale` by hand: it would grow back else. A change that was begun is brought to its end."""
    names = [machine.name for machine in ctx.ledger.claim_standbys(JOB, 2)]
    ctx.ledger.set_size(JOB, names)
    case = asked_for(ctx, 2)
    assert resize.has_size(case, 2)
    assert not resize.has_size(case, 3)
    assert resize.keep_size(case, 2) == "it has 2 machines already"
    sizes = ctx.ledger.job(JOB).spec.elastic
    assert sizes is not None
    assert sizes.want == 2
    ctx.ledger.begin(case.incident_id, 1, f"claim:{case.life}", "claim", {"machines": 2})
    assert not resize.has_size(case, 2)


async def test_a_state_that_another_size_cannot_load_is_not_given_up(
    ctx: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``merge`` and ``split`` are asked at another size alone: what they raise is no fault of the state."""
    given_up: list[int] = []

    async def give_up(_ctx: Context, _job: str, step: int, *_: object) -> list[int]:
        given_up.append(step)
        return [step]

    monkeypatch.setattr(resume.restore, "give_up_state", give_up)
    names = [machine.name for machine in ctx.ledger.claim_standbys(JOB, 4)]
    ctx.ledger.set_job(JOB, machines=names, state=JobState.RECOVERING)
    ctx.ledger.open_epoch(JOB, 1, 0, "v1", names, "new")
    case = asked_for(ctx, 2)
    await resize.place.fn(case, 2)
    ctx.ledger.open_epoch(JOB, 2, 40, "v1", names[:2], "scaled")
    with pytest.raises(
        RecoveryError, match=r"step 40 cannot be loaded by 2 machines \(the job had 4\): TypeError"
    ):
        await resume._give_up_state(case, 2, "TypeError: 'NoneType' object is not subscriptable")
    assert given_up == []

    again = case.model_copy(update={"attempt": 2, "broken_epoch": 2}).within(ctx)
    await resize.place.fn(again, 4)
    ctx.ledger.open_epoch(JOB, 3, 40, "v1", names, "its former size")
    await resume._give_up_state(again, 3, "bytes changed after they were saved")
    assert given_up == [40], "nor can the ranks that saved it"


async def test_a_job_at_zero_for_which_too_few_machines_stand_by_waits_for_them(ctx: Context) -> None:
    """A schedule asked, so no person saw a refusal: it would have stayed at zero until the next one."""
    ctx.ledger.set_job(JOB, machines=(), state=JobState.RECOVERING)
    ctx.ledger.set_machine("m3", state=MachineState.CORDONED)
    case = asked_for(ctx, 4)
    with without_prefect():
        with pytest.raises(NoStandbyError) as found:
            await resize.take_up(case)
        await limits.met(case, found.value)
    (wait,) = ctx.ledger.waits()
    assert (wait.missing, wait.runs_on) == (Missing.STANDBY, True)
    closed = ctx.ledger.incident(case.incident_id)
    assert closed.state is IncidentState.NEEDS_HUMAN
    assert "the job stays at zero meanwhile" in closed.summary
    assert ctx.ledger.job(JOB).state is JobState.SCALED_TO_ZERO


async def test_a_job_that_was_given_machines_at_zero_and_does_not_start_is_not_taken_to_run(
    ctx: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was never stopped, and nothing of it runs: its incident waits, and the job has failed until then."""

    async def refused(_case: RecoveryContext) -> None:
        raise LimitError("no saved state is usable")

    monkeypatch.setattr(limits, "resume", refused)
    ctx.ledger.set_job(JOB, machines=(), state=JobState.RECOVERING)
    ctx.ledger.claim_standbys(JOB, 2)
    case = asked_for(ctx, 2)
    with disable_run_logger():
        assert await limits._in_place(case) == "the job was not stopped"
        await resize.place.fn(case, 2)
        assert await limits._in_place(case) == ""


@pytest.mark.parametrize("state", [JobState.DONE, JobState.STOPPED, JobState.FAILED, JobState.PAUSED])
def test_a_schedule_neither_starts_a_job_that_has_ended_nor_ends_a_hold(
    ctx: Context, state: JobState
) -> None:
    """Its run names a job and a size; it opens the incident itself."""
    ctx.ledger.set_job(JOB, state=state)
    nightly = Request(job=JOB, machines=2)
    with pytest.raises(RefusedError, match=f"is {state.value}: only a running job"):
        detect._open(ctx, nightly, IncidentClass.SCALE_JOB, 1_000.0)
    assert ctx.ledger.incidents(JOB) == []
    ctx.ledger.set_job(JOB, state=JobState.RUNNING)
    assert detect._open(ctx, nightly, IncidentClass.SCALE_JOB, 1_000.0).machines_asked == 2


@pytest.mark.parametrize("state", [JobState.RECOVERING, JobState.STOPPED])
def test_a_job_that_a_person_stopped_meanwhile_stays_so(ctx: Context, state: JobState) -> None:
    """Also one that was to get its first machines back; any other goes back to zero."""
    ctx.ledger.set_job(JOB, machines=(), state=state)
    resize.leave_at_zero(asked_for(ctx, 2))
    stays = state is JobState.STOPPED
    assert ctx.ledger.job(JOB).state is (JobState.STOPPED if stays else JobState.SCALED_TO_ZERO)


async def test_a_shrink_whose_record_was_lost_is_recorded_by_the_next_attempt(
    ctx: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed in between: the job has its new size, and what it does without is known from the intent."""
    ctx.ledger.claim_standbys(JOB, 4)
    ctx.ledger.set_job(JOB, machines=("m0", "m1", "m2", "m3"), state=JobState.RECOVERING)
    ctx.ledger.set_machine("m3", state=MachineState.CORDONED, job=None)
    case = asked_for(ctx, 3)
    monkeypatch.setattr(resize, "_drop", resize._drop.fn)
    finish = type(ctx.ledger).finish

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(type(ctx.ledger), "finish", killed)
    with disable_run_logger():
        with pytest.raises(KeyboardInterrupt):
            await resize.shrink(case)
        assert case.done("shrink") == []
        monkeypatch.setattr(type(ctx.ledger), "finish", finish)
        for _ in range(2):
            await resize.shrink(case)
    assert ctx.ledger.job(JOB).machines == ("m0", "m1", "m2")
    (action,) = case.done("shrink")
    assert action.result == {"from": 4, "to": 3, "lacking": ["m3"]}

"""New code is on all machines before the job is held for it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator
from pathlib import Path

import pytest
from prefect.logging import disable_run_logger

from holdfast.errors import HoldfastError, RefusedError, SilentError, UnavailableError
from holdfast.models.agent import PrepareCode
from holdfast.models.alert import Alert, AlertKind, IncidentClass
from holdfast.models.job import JobState
from holdfast.models.machine import Machine
from holdfast.operations import fleet
from holdfast.operations.context import Context
from holdfast.tasks import detect, rollback
from holdfast.tasks.recovery_context import RecoveryContext, Request
from tests.tasks.two_machines import JOB, case_of, running_job

AWAY = UnavailableError("the store does not answer")


class Agents:
    """Agents of two machines, in the place of real ones; ``errors``: those of machines that cannot fetch it."""

    def __init__(self, errors: dict[str, HoldfastError]) -> None:
        self.errors = errors
        self.fetched: list[tuple[str, str]] = []

    async def ask(
        self,
        _ctx: Context,
        machines: Iterable[Machine],
        command: Callable[[object, Machine], Awaitable[object]],
        **_: int,
    ) -> dict[str, object]:
        answers: dict[str, object] = {}
        for machine in machines:
            self._asked = machine.name
            try:
                answers[machine.name] = await command(self, machine)
            except HoldfastError as error:
                answers[machine.name] = error
        return answers

    async def prepare_code(self, order: PrepareCode) -> None:
        if self._asked in self.errors:
            raise self.errors[self._asked]
        self.fetched.append((self._asked, order.version))


@pytest.fixture
def ctx(tmp_path: Path) -> Iterator[Context]:
    """A job of two machines."""
    ctx = running_job(tmp_path)
    with disable_run_logger():
        yield ctx


def update(ctx: Context, *more: Alert) -> RecoveryContext:
    """The case of an update to v2."""
    asked = Alert(kind=AlertKind.CODE_UPDATE, job=JOB, epoch=1, at=1_000.0, evidence={"version": "v2"})
    return case_of(ctx, IncidentClass.CODE_UPDATE, asked, *more)


async def why(
    ctx: Context, monkeypatch: pytest.MonkeyPatch, errors: dict[str, HoldfastError], *more: Alert
) -> tuple[str, Agents]:
    agents = Agents(errors)
    monkeypatch.setattr(fleet, "ask", agents.ask)
    return await rollback.why_not_fetched.fn(update(ctx, *more)), agents


async def test_it_is_fetched_before_the_job_is_held(ctx: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """By every machine; the job names its old version until the switch."""
    reason, agents = await why(ctx, monkeypatch, {})
    assert reason == ""
    assert agents.fetched == [("m0", "v2"), ("m1", "v2")]
    assert ctx.ledger.job(JOB).code_version == "v1"


async def test_a_job_is_not_stopped_for_code_that_cannot_be_had(
    ctx: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message names the machine, the reason, and what runs on."""
    reason, _ = await why(ctx, monkeypatch, {"m1": AWAY})
    assert "m1: the store does not answer" in reason
    assert "trains on with v1" in reason


@pytest.mark.parametrize("evidence", [{"class": "code_update"}, {"class": "code_update", "version": "a b"}])
async def test_a_request_without_a_version_changes_nothing(
    ctx: Context, monkeypatch: pytest.MonkeyPatch, evidence: dict[str, str]
) -> None:
    """A person's alert may name the class alone: the job trains on, whatever the playbook was started for."""
    agents = Agents({})
    monkeypatch.setattr(fleet, "ask", agents.ask)
    asked = Alert(kind=AlertKind.MANUAL, job=JOB, epoch=1, at=1_000.0, evidence=evidence)
    case = case_of(ctx, IncidentClass.CODE_UPDATE, asked)
    reason = await rollback.why_not_fetched.fn(case)
    assert reason.startswith("nothing was changed: the request names no code version")
    assert agents.fetched == []
    assert await rollback.apply_update.fn(case) == "v1"


@pytest.mark.parametrize(
    ("incident_class", "text"),
    [
        (IncidentClass.CODE_UPDATE, "holdfast update"),
        (IncidentClass.PLANNED_MOVE, "incident.machine is empty"),
        (IncidentClass.MACHINE_FAULT, "incident.machine is empty"),
    ],
)
def test_what_a_person_starts_without_what_it_is_about_is_refused(
    ctx: Context, incident_class: IncidentClass, text: str
) -> None:
    """As the deployment is started in the Prefect UI for a job: no incident is opened, and nothing is tried again."""
    with pytest.raises(RefusedError, match=text):
        detect._open(ctx, Request(job=JOB), incident_class, 1_000.0)
    assert ctx.ledger.incidents(job=JOB) == []


@pytest.mark.parametrize("state", [JobState.DONE, JobState.STOPPED, JobState.SCALED_TO_ZERO])
def test_a_job_that_gave_its_machines_back_is_not_recovered_by_hand(ctx: Context, state: JobState) -> None:
    """Checks would run on machines that serve others, and its ranks would start again although a person stopped it."""
    ctx.ledger.set_job(JOB, state=state)
    with pytest.raises(RefusedError, match=f"is {state.value}: there is nothing to recover"):
        detect._open(ctx, Request(job=JOB), IncidentClass.JOB_CRASH, 1_000.0)
    assert ctx.ledger.incidents(job=JOB) == []
    ctx.ledger.set_job(JOB, state=JobState.FAILED)
    assert detect._open(ctx, Request(job=JOB), IncidentClass.JOB_CRASH, 1_000.0).job == JOB


async def test_a_machine_that_does_not_answer_is_no_reason(
    ctx: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is replaced with the update, as before."""
    reason, _ = await why(ctx, monkeypatch, {"m1": SilentError("no answer")})
    assert reason == ""


async def test_a_job_whose_rank_is_dead_goes_on_with_its_update(
    ctx: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not train: it must be started again in any case."""
    dead = Alert(kind=AlertKind.RANK_EXIT, job=JOB, machine="m0", epoch=1, rank=0, at=1_000.0)
    reason, agents = await why(ctx, monkeypatch, {"m1": AWAY}, dead)
    assert reason == ""
    assert agents.fetched == []


@pytest.mark.parametrize("done", [True, False])
async def test_a_job_that_an_earlier_attempt_held_goes_on_with_its_update(
    ctx: Context, monkeypatch: pytest.MonkeyPatch, done: bool
) -> None:
    """Its ranks wait at a step boundary: that it trains on would be wrong, and it would stand."""
    agents = Agents({"m1": AWAY})
    monkeypatch.setattr(fleet, "ask", agents.ask)
    case = update(ctx)
    ctx.ledger.begin(case.incident_id, 1, "hold:e1", "hold", {})
    if done:
        ctx.ledger.finish(case.incident_id, "hold:e1", {"held": True, "step": 7})
    assert await rollback.why_not_fetched.fn(case) == ""
    assert agents.fetched == []

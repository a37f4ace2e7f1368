"""A run whose work another one does, or that has nothing left to do: it ends without paging a person."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import LimitError, StaleError
from holdfast.flows.job_crash import job_crash
from holdfast.models.alert import IncidentClass, IncidentState
from holdfast.operations.context import Context
from holdfast.tasks.playbook import Recovered, playbook
from holdfast.tasks.recovery_context import RecoveryContext, Request
from tests.tasks.two_machines import case_of, played


@pytest.fixture
def ctx(tmp_path: Path) -> Iterator[Context]:
    with played(tmp_path) as ctx:
        yield ctx


async def act(case: RecoveryContext) -> Recovered:
    async def nothing() -> dict[str, Any]:
        return {}

    await case.once("act", "x", {}, nothing)
    return Recovered(summary="not this run")


async def meet_a_limit(_: RecoveryContext) -> Recovered:
    raise LimitError("the ladder is spent")


async def come_to_an_end(_: RecoveryContext) -> Recovered:
    return Recovered(summary="not this run")


async def test_a_run_that_begins_after_the_next_attempt_did_is_dismissed(ctx: Context) -> None:
    """No worker was free for so long that the gateway created another run; then one took this up."""
    case = case_of(ctx, IncidentClass.JOB_CRASH)
    ctx.ledger.next_attempt(case.incident_id, 1)
    ended = await job_crash.fn(Request(id=case.incident_id, attempt=1))
    assert (ended.name, ended.is_completed()) == ("Dismissed", True)
    assert ended.message == "attempt 1 of gpt-1 was taken over by 2"


@pytest.mark.parametrize("step", [act, meet_a_limit, come_to_an_end])
async def test_a_run_that_is_replaced_while_it_works_is_dismissed(
    ctx: Context, step: Callable[[RecoveryContext], Awaitable[Recovered]]
) -> None:
    """It was silent for too long, or a person set its state: the next attempt goes on from what it did."""

    async def job_crash(case: RecoveryContext) -> Recovered:
        """Recover, as far as this attempt may."""
        ctx.ledger.next_attempt(case.incident_id, 1)
        ctx.ledger.take_job(case.incident_id, 2, "the next run", "another", 20.0)
        return await step(case)

    case = case_of(ctx, IncidentClass.JOB_CRASH)
    ended = await playbook(would="nothing")(job_crash).fn(Request(id=case.incident_id, attempt=1))
    assert (ended.name, ended.is_completed()) == ("Dismissed", True)
    assert ended.message == "attempt 1 of gpt-1 was taken over by 2"
    assert ctx.ledger.incident(case.incident_id).state is IncidentState.OPEN


async def test_a_run_that_is_retried_in_the_ui_after_the_end_says_how_it_ended(ctx: Context) -> None:
    case = case_of(ctx, IncidentClass.JOB_CRASH)
    ctx.ledger.end_incident(case.incident_id, IncidentState.RECOVERED, "epoch 2 from step 7", 1_001.0)
    ended = await job_crash.fn(Request(id=case.incident_id, attempt=1))
    assert (ended.name, ended.is_completed()) == ("Dismissed", True)
    assert ended.message == "nothing to do: gpt-1 is closed (recovered: epoch 2 from step 7)"


async def test_a_run_that_lost_the_lease_while_no_other_attempt_goes_on_fails(ctx: Context) -> None:
    """The gateway starts the next one only then."""

    async def job_crash(case: RecoveryContext) -> Recovered:
        """Recover."""
        raise StaleError("the lease of job gpt is another run's")

    case = case_of(ctx, IncidentClass.JOB_CRASH)
    with pytest.raises(StaleError):
        await playbook(would="nothing")(job_crash).fn(Request(id=case.incident_id, attempt=1))

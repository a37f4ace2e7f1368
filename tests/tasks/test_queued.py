"""A person's or an automation's run for a job whose recovery is under way: its incident waits for its turn."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.deployments.gateway.runs.judge import why_moot
from holdfast.flows.machine_fault import machine_fault
from holdfast.models.alert import IncidentClass
from holdfast.operations.context import Context
from holdfast.tasks.recovery_context import Request
from tests.tasks.two_machines import JOB, case_of, played


@pytest.fixture
def ctx(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Context]:
    monkeypatch.setenv("PREFECT__RUNTIME__FLOW_RUN__ID", "the-second-run")
    with played(tmp_path) as ctx:
        yield ctx


async def test_the_same_request_twice_restarts_no_job_that_trains_again(ctx: Context) -> None:
    """An automation fired twice: the gateway took the second run for a failed attempt, and stopped the job for it."""
    case_of(ctx, IncidentClass.MACHINE_FAULT)
    ended = await machine_fault.fn(Request(job=JOB, machine="m0", reason="hot"))
    second = ctx.ledger.incident("gpt-2")
    assert (ended.name, ended.is_completed()) == ("Dismissed", True)
    assert str(ended.message).startswith("gpt-2 waits: gpt-1 of job gpt is worked on first")
    assert second.flow_run_id is None  # as one that the gateway keeps waiting, and judges when its turn comes

    ctx.ledger.next_epoch(JOB)
    ctx.ledger.set_job(JOB, machines=("m2", "m1"))
    assert why_moot(second, ctx.ledger.job(JOB), ()) == "the job runs again since epoch 2"

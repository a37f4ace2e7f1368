"""States that are left behind by what the ledger has of an incident."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.models.alert import Alert, AlertKind, IncidentClass
from holdfast.operations.context import Context
from holdfast.policies.restore.poisoned import StateFinding
from holdfast.tasks import poisoned
from holdfast.tasks.context import use
from holdfast.tasks.recovery_context import RecoveryContext
from tests.tasks.two_machines import JOB, case_of, running_job

LOST = Alert(kind=AlertKind.MACHINE_LOST, job=JOB, machine="m1", epoch=1, at=1_000.0)


@pytest.fixture
def ctx(tmp_path: Path) -> Iterator[Context]:
    """A job of two machines with a rank each, at step 20 of its first epoch."""
    ctx = running_job(tmp_path)
    use(ctx)
    ctx.ledger.open_epoch(JOB, 1, 0, "v1", ["m0", "m1"], "submitted")
    ctx.ledger.mark(JOB, 1, 20, 1_000.0)
    yield ctx
    use(None)


def fell(ctx: Context, case: RecoveryContext, cause: str = "checkpoint") -> RecoveryContext:
    """The next attempt: what was started from step 10 could not read an object of that state from S3."""
    epoch = ctx.ledger.next_epoch(JOB)
    act(ctx, case, f"start:after-e{case.broken_epoch}", epoch=epoch)
    ctx.ledger.open_epoch(JOB, epoch, 10, "v1", ["m0", "m2"], "again", incident_id=case.incident_id)
    evidence = {"exit_code": 1, "error_type": "UnavailableError", "cause": cause}
    error = Alert(
        kind=AlertKind.RANK_EXIT, job=JOB, machine="m0", rank=0, epoch=epoch, at=1.0, evidence=evidence
    )
    ctx.ledger.join(case.incident_id, [error])
    return case.model_copy(update={"broken_epoch": epoch}).within(ctx)


def act(ctx: Context, case: RecoveryContext, key: str, **result: object) -> None:
    ctx.ledger.begin(case.incident_id, 1, key, key.partition(":")[0], {})
    ctx.ledger.finish(case.incident_id, key, result)


def test_a_state_that_cannot_be_read_after_a_machine_was_replaced_is_left_behind(ctx: Context) -> None:
    """That a machine was evicted explains why the epoch before ended, and none of those after it."""
    case = case_of(ctx, IncidentClass.MACHINE_FAULT, LOST)
    act(ctx, case, "evict:m1")
    case = fell(ctx, case)
    assert poisoned.finding(case).once_more
    found = poisoned.finding(fell(ctx, case)).leave
    assert found is not None
    assert found.step == 10
    assert "(UnavailableError (checkpoint))" in found.why


def test_a_store_that_gives_nothing_blames_no_state(ctx: Context) -> None:
    """It refuses the ranks' credentials, or is away for them: an older state would meet the same."""
    case = case_of(ctx, IncidentClass.MACHINE_FAULT, LOST)
    act(ctx, case, "evict:m1")
    case = fell(ctx, fell(ctx, case, "remote_storage"), "remote_storage")
    assert poisoned.finding(case) == StateFinding()


def test_what_a_machine_was_evicted_for_blames_no_state(ctx: Context) -> None:
    """The second fall led to an eviction: one is left, which is not enough."""
    case = case_of(ctx, IncidentClass.MACHINE_FAULT, LOST)
    act(ctx, case, "evict:m1")
    case = fell(ctx, case)
    act(ctx, case, "evict:m0")
    assert poisoned.finding(fell(ctx, case)).leave is None

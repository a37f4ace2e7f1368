"""Failures of epochs that an incident started: the first one again, or one of their own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.models.alert import Alert, AlertKind, IncidentClass, Rung
from holdfast.operations.context import Context
from holdfast.tasks import escalation, falls
from holdfast.tasks.context import use
from holdfast.tasks.recovery_context import RecoveryContext
from tests.tasks.two_machines import JOB, case_of, running_job


@pytest.fixture
def ctx(tmp_path: Path) -> Iterator[Context]:
    """A job of two machines with a rank each, at step 20 of its first epoch."""
    ctx = running_job(tmp_path)
    use(ctx)
    ctx.ledger.add_version(JOB, "v0", "key", "of an earlier submission, which never trained")
    ctx.ledger.add_version(JOB, "v1", "key", "")
    ctx.ledger.open_epoch(JOB, 1, 0, "v1", ["m0", "m1"], "submitted")
    ctx.ledger.mark(JOB, 1, 20, 1_000.0)
    yield ctx
    use(None)


def died(rank: int, epoch: int, **evidence: object) -> Alert:
    """A rank of the machine with its number was killed, or ended as ``evidence`` shows."""
    return Alert(
        kind=AlertKind.RANK_EXIT,
        job=JOB,
        machine=f"m{rank}",
        rank=rank,
        epoch=epoch,
        at=1_000.0,
        evidence=evidence or {"signal": "SIGKILL", "exit_code": -9},
    )


def fell(ctx: Context, case: RecoveryContext, *alerts: Alert) -> RecoveryContext:
    """The next attempt, after a retry whose epoch fell before its first step."""
    ctx.ledger.begin(case.incident_id, 1, f"rung:{case.life}", "rung", {})
    ctx.ledger.finish(
        case.incident_id,
        f"rung:{case.life}",
        {"rung": "retry", "reasons": [], "data": "", "skip": None, "spared": "", "epoch": case.broken_epoch},
    )
    epoch = ctx.ledger.next_epoch(JOB)
    ctx.ledger.open_epoch(JOB, epoch, 20, "v1", ["m0", "m1"], "retry", incident_id=case.incident_id)
    ctx.ledger.join(case.incident_id, alerts)
    return case.model_copy(update={"broken_epoch": epoch}).within(ctx)


def test_another_rank_that_is_killed_before_the_first_step_is_retried_in_place_too(ctx: Context) -> None:
    """Three kills of three ranks, seconds apart, while the job comes up: no rung above the first is due."""
    case = case_of(ctx, IncidentClass.JOB_CRASH, died(0, 1))
    assert escalation.decide(case).rung is Rung.RETRY
    case = fell(ctx, case, died(1, 2))
    found = falls.of(case)
    assert (found.newest.rank, found.again, found.others) == (1, False, {1})
    assert escalation.decide(case).rung is Rung.RETRY


def test_the_same_rank_that_is_killed_again_climbs(ctx: Context) -> None:
    """Its budget is spent; and a version that never trained is no way back."""
    case = fell(ctx, case_of(ctx, IncidentClass.JOB_CRASH, died(0, 1)), died(0, 2))
    found = falls.of(case)
    assert (found.newest.rank, found.again, found.others) == (0, True, set())
    decision = escalation.decide(case)
    assert "retry: tried 1 of 1 times without progress" in decision.reasons
    assert "rollback: no earlier good code version" in decision.reasons


def test_a_start_that_fell_for_no_known_cause_fell_as_the_first_one(ctx: Context) -> None:
    """As one that did not come up in time."""
    found = falls.of(fell(ctx, case_of(ctx, IncidentClass.JOB_CRASH, died(0, 1))))
    assert (found.newest.rank, found.again, found.others) == (0, True, set())


def test_evidence_against_the_code_is_that_of_the_newest_failure(ctx: Context) -> None:
    """An exception on both ranks at first; then one of them is killed from outside."""
    raised = {"exit_code": 1, "error_type": "ValueError", "user_frame": "train.py:7 in step"}
    first = [died(rank, 1, **raised) for rank in (0, 1)]
    case = fell(ctx, case_of(ctx, IncidentClass.JOB_CRASH, *first), died(1, 2))
    seen = escalation.circumstances(case, falls.of(case))
    assert seen.signature.what == "SIGKILL"
    assert "came from outside, and once" in seen.code_cleared

"""Step: find out whether a failure comes from a line that the running code version changed."""

from __future__ import annotations

import asyncio
from typing import Any

from prefect import task
from prefect.logging import get_run_logger

from holdfast.errors import HoldfastError
from holdfast.models.alert import Rung
from holdfast.policies.classify.signature import Signature
from holdfast.policies.escalate import changes, evidence
from holdfast.storage.ledger.one_view import one_view
from holdfast.tasks import falls, history
from holdfast.tasks.recovery_context import RecoveryContext
from holdfast.tasks.rollback import last_good

_LONGEST_S = 10.0
"""Seconds that a recovery waits for two archives."""


def due(case: RecoveryContext, failed: Signature, facts: evidence.FailureFacts) -> str:
    """Return the version to compare the running one with; empty: a comparison would decide nothing.

    It decides when the same failure came again, with a traceback in the job's code, and without other evidence against
    the code.
    """
    policy, job = case.ctx.policy.ladder, case.job_now()
    if Rung.ROLLBACK not in policy.of(case.incident_class).rungs or not facts.again or not failed.frame:
        return ""
    if evidence.for_code(facts, policy.code_suspect_s):
        return ""
    return last_good(case, job.code_version) or ""


async def compare_code(case: RecoveryContext) -> None:
    """Write down whether the traceback ends in a line that the running version changed, where that matters."""
    with one_view():
        fell = falls.of(case)
        facts = history.facts(
            case.ctx, case.incident, state_suspected=False, newest=fell.newest, others=fell.others
        )
        before = due(case, facts.signature, facts)
    if before:
        await compare_with(case, before, facts.signature.frame)


@task(task_run_name="compare the code of {case.job} with version {before}")
async def compare_with(case: RecoveryContext, before: str, frame: str) -> None:
    """Write down whether ``frame``, where the traceback ends, was changed since the code version ``before``."""
    now = case.job_now().code_version

    async def act() -> dict[str, Any]:
        return {"changed": await _changed(case, frame, before, now), "frame": frame, "against": before}

    done = await case.once("compare", case.life, {"frame": frame, "against": before}, act)
    get_run_logger().info("%s", done["changed"] or f"{frame} is as it was in version {before}")


def found(case: RecoveryContext) -> str:
    """Return the newest comparison's evidence against the code; empty: none, or there was no comparison."""
    done = [action for action in case.done("compare") if action.key == f"compare:{case.life}"]
    return str((done[-1].result or {}).get("changed", "")) if done else ""


async def _changed(case: RecoveryContext, frame: str, before: str, now: str) -> str:
    """Describe the change; empty also when it cannot be known: then there is no evidence against the code."""
    where = changes.place(frame)
    if where is None:
        return ""
    try:
        async with asyncio.timeout(_LONGEST_S):
            lines = await asyncio.to_thread(case.ctx.changed_lines, case.job, (before, now), where.file)
    except (HoldfastError, TimeoutError, ValueError) as error:
        get_run_logger().warning("what version %s changed in %s is not known: %s", now, where.file, error)
        return ""
    return changes.evidence(frame, lines, before, now)

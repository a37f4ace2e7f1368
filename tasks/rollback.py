"""Steps: switch the job's code: back to the last good version, or on to a new one."""

from __future__ import annotations

from typing import Any

from prefect import task
from prefect.logging import get_run_logger

from holdfast import names
from holdfast.errors import LimitError
from holdfast.operations import fleet
from holdfast.policies.escalate import code
from holdfast.tasks.recovery_context import RecoveryContext


@task(task_run_name="roll back the code of {case.job}")
async def rollback(case: RecoveryContext, reason: str) -> str:
    """Mark the current version bad and switch to the newest good one before it; return that version.

    Raises:
        LimitError: there is no earlier good version; a human decides.
    """
    # As it was when this was begun: repeated, the version that it switched to is not the bad one.
    current = str(case.begun("rollback", case.life).get("from") or case.job_now().code_version)

    async def act() -> dict[str, Any]:
        ledger = case.ledger
        good = code.last_good(ledger.versions(case.job), current)
        if good is None:
            raise LimitError(f"job {case.job} has no good code version before {current} to roll back to")
        ledger.mark_bad(case.job, current, f"{case.incident_id}: {reason}")
        await _switch(case, good)
        return {"from": current, "to": good}

    done = await case.once("rollback", case.life, {"reason": reason, "from": current}, act)
    get_run_logger().info("code %s -> %s: %s", done["from"], done["to"], reason)
    return str(done["to"])


@task(task_run_name="update the code of {case.job}")
async def apply_update(case: RecoveryContext) -> str:
    """Switch to the version that the incident's alert names; return it."""
    version = next(
        names.require(names.VERSION, alert.evidence["version"])
        for alert in case.incident.alerts
        if "version" in alert.evidence
    )

    async def act() -> dict[str, Any]:
        before = case.job_now().code_version
        await _switch(case, version)
        return {"from": before, "to": version}

    done = await case.once("update", version, {"version": version}, act)
    get_run_logger().info("code %s -> %s", done["from"], done["to"])
    return version


async def _switch(case: RecoveryContext, version: str) -> None:
    """Check the version out everywhere first; the job names it only when every machine can start it."""
    ctx = case.ctx
    answers = await fleet.prepare_code(ctx, case.job_now(), version, case.machines_now())
    fleet.all_or_raise(answers)
    case.ledger.set_job(case.job, code_version=version)

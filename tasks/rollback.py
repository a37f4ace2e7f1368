"""Steps: switch the job's code: back to the last good version, or on to a new one."""

from __future__ import annotations

from typing import Any

from prefect import task
from prefect.logging import get_run_logger

from holdfast import names
from holdfast.errors import LimitError, SettingsError
from holdfast.models.alert import Alert
from holdfast.operations import fleet
from holdfast.policies.escalate import code, overtake
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
        good = last_good(case, current)
        if good is None:
            raise LimitError(
                f"job {case.job} has no good code version before {current} to roll back to: none with which it trained"
            )
        ledger.mark_bad(case.job, current, f"{case.incident_id}: {reason}")
        await _switch(case, good)
        return {"from": current, "to": good}

    done = await case.once("rollback", case.life, {"reason": reason, "from": current}, act)
    get_run_logger().info("code %s -> %s: %s", done["from"], done["to"], reason)
    return str(done["to"])


def fell_too(case: RecoveryContext) -> bool:
    """Return whether what failed now is the version that was gone back to, and no newer one that was shipped."""
    back = case.done("rollback")
    if not back or case.begun("rollback", case.life):
        return False
    return (back[-1].result or {}).get("to") == case.job_now().code_version


def last_good(case: RecoveryContext, current: str) -> str | None:
    """Return the version that a rollback from ``current`` goes to; None: there is none."""
    ledger = case.ctx.ledger
    proven = code.proven(ledger.epochs(case.job), ledger.job(case.job).submitted_at)
    return code.last_good(ledger.versions(case.job), current, proven)


@task(task_run_name="fetch the new code of {case.job} while it trains")
async def why_not_fetched(case: RecoveryContext) -> str:
    """Have the new version checked out on all machines before the job is held; return why it cannot be, for people.

    Empty: it can, or the job does not train any more (an earlier attempt held it, for example), and nothing is won by
    leaving it as it is. A machine that does not answer is no reason: it is replaced.
    """
    if case.stands or _begun_to_stop(case) or _trains_no_more(case):
        return ""
    version, job = _wanted(case), case.job_now()
    if version is None:
        return (
            "nothing was changed: the request names no code version; "
            f"`holdfast update {case.job} --code FOLDER` stores one and ships it"
        )
    answers = await fleet.prepare_code(case.ctx, job, version, case.machines_now())
    silent = fleet.silent(answers)
    why = [f"{name}: {error}" for name, error in answers.items() if error is not None and name not in silent]
    if not why or _trains_no_more(case):  # asked again: what fell meanwhile joined this incident
        return ""
    return (
        f"the code was not updated to {version}, which cannot be fetched ({why[0]}); the job was not stopped, and "
        f"trains on with {job.code_version}. `holdfast update` tries it again"
    )


@task(task_run_name="update the code of {case.job}")
async def apply_update(case: RecoveryContext) -> str:
    """Switch to the version that the incident's alert names; return it. Where none is named the present one stays."""
    version = _wanted(case) or case.job_now().code_version

    async def act() -> dict[str, Any]:
        before = case.job_now().code_version
        await _switch(case, version)
        return {"from": before, "to": version}

    done = await case.once("update", version, {"version": version}, act)
    get_run_logger().info("code %s -> %s", done["from"], done["to"])
    return version


def _begun_to_stop(case: RecoveryContext) -> bool:
    """Return whether an attempt began to hold or stop the ranks: they may stand at a step boundary since."""
    actions = case.ctx.ledger.actions(case.incident_id, evidence=False)
    return any(action.kind in ("hold", "pause") for action in actions)


def _trains_no_more(case: RecoveryContext) -> bool:
    return overtake.ended(case.incident.alerts, case.broken_epoch)


def _wanted(case: RecoveryContext) -> str | None:
    """Return the version that the incident's alert names; None: it names none, or what cannot be one."""
    return next(filter(None, map(_named, case.incident.alerts)), None)


def _named(alert: Alert) -> str | None:
    try:
        return names.require(names.VERSION, alert.evidence.get("version"))
    except SettingsError:
        return None


async def _switch(case: RecoveryContext, version: str) -> None:
    """Check the version out everywhere first; the job names it only when every machine can start it."""
    ctx = case.ctx
    answers = await fleet.prepare_code(ctx, case.job_now(), version, case.machines_now())
    fleet.all_or_raise(answers)
    case.ledger.set_job(case.job, code_version=version)

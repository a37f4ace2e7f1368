"""A job whose playbook meets a limit: it runs on where it can, else its next attempt has a time."""

from __future__ import annotations

from prefect.logging import get_run_logger

from holdfast.errors import HoldfastError, LimitError, NoStandbyError
from holdfast.models.job import JobState
from holdfast.models.missing import Missing
from holdfast.models.wait import Wait
from holdfast.policies.classify import sure_signs, unable
from holdfast.policies.escalate import overtake, waits
from holdfast.tasks import beside, firing
from holdfast.tasks.pause import pause
from holdfast.tasks.recovery_context import RecoveryContext
from holdfast.tasks.report import ask_human, cause, left_running, report
from holdfast.tasks.resize import came_from_zero
from holdfast.tasks.resume import resume


async def met(case: RecoveryContext, limit: LimitError | NoStandbyError) -> None:
    """Close the incident: with the job running on, or with what it waits for and when it is retried."""
    case = beside.present(case)
    missing, again_at = Missing.STANDBY, None
    if isinstance(limit, LimitError):
        missing, again_at = limit.missing, limit.again_at
    if case.beside:
        await ask_human(case, str(limit))
        return
    cannot = _cannot_run(case)
    runs = waits.may_run_on(case.incident_class, missing, case.round, unable=bool(cannot))
    in_place = await _in_place(case) if runs else ""
    if in_place and case.incident_class not in waits.RUNS_ON:
        await report(case, f"{limit}; {in_place}")
        return
    why = f"{limit}; it cannot run on {cannot}" if cannot and missing is Missing.APPROVAL else str(limit)
    outlook = _put(case, why, missing, again_at, runs_on=bool(in_place))
    if in_place:
        await left_running(case, f"{cause(case.incident)}{limit}; {in_place}. {outlook}")
    else:
        await ask_human(case, f"{cause(case.incident)}{why}. {outlook}")


def _cannot_run(case: RecoveryContext) -> str:
    """Return the machines of the job on which no rank can run, with the reasons; empty: there is none."""
    alerts = sure_signs.of_present(firing.still(case.ctx, case.incident), case.incarnations())
    found = unable.find(alerts, case.ctx.policy.classify)
    return "; ".join(f"{name} ({why})" for name, why in found.items())


def _put(case: RecoveryContext, why: str, missing: Missing, again_at: float | None, *, runs_on: bool) -> str:
    """Record the wait before the incident is closed; return the message for people."""
    ledger, now = case.ledger, case.ctx.clock.now()
    own = ledger.last_wait(case.incident_id)
    earlier = ledger.earlier_wait(case.incident_id) if runs_on else None
    wait = Wait(
        incident_id=case.incident_id,
        job=case.job,
        missing=missing,
        why=why[:2000],
        since=now,
        next_at=now,
        times=waits.times(missing, own, earlier, now, case.ctx.policy.again),
        runs_on=runs_on,
    )
    seen = waits.outlook(wait, again_at, case.ctx.policy.again, at_zero=_at_zero(case))
    ledger.put_wait(seen.wait)
    return seen.message


def _at_zero(case: RecoveryContext) -> bool:
    """Return whether the job is scaled to zero, and was left so: there is nothing to start."""
    return case.job_now().state is JobState.SCALED_TO_ZERO


async def _in_place(case: RecoveryContext) -> str:
    """Have the job run on the machines that it has; return how. Empty: it does not."""
    if _at_zero(case):
        return "the job has no machines"
    stopped = came_from_zero(case) or any(action.key == f"pause:{case.life}" for action in case.done("pause"))
    if not case.round and not stopped:
        if not overtake.ended(case.incident.alerts, case.broken_epoch):
            return "the job was not stopped"
        await pause(case)  # a rank of it is dead, and all others wait for it
    if not all(machine.serves(case.job) for machine in case.machines_now()):
        return ""
    try:
        resumed = await resume(case)
    except HoldfastError as error:
        get_run_logger().warning("it does not run on as it is: %s", error)
        return ""
    return f"started in place, {resumed.summary}"

"""Steps of a planned move, beside the training: choose a standby, check it, bring up the next epoch there."""

from __future__ import annotations

from typing import Any

from prefect import task
from prefect.logging import get_run_logger

from holdfast.errors import HoldfastError, LimitError, NotNeededError
from holdfast.models.agent import Check
from holdfast.models.history import ActionState
from holdfast.models.machine import Machine, MachineState
from holdfast.models.missing import Missing
from holdfast.operations import move, swap
from holdfast.operations.move import Brought
from holdfast.policies.pool import planned_move
from holdfast.policies.pool.planned_move import MoveRequest
from holdfast.tasks.recovery_context import RecoveryContext
from holdfast.tasks.standby_checks import check_machines


def begun(case: RecoveryContext) -> bool:
    """Return whether the switch was begun: ranks are held or stopped, and it is brought to its end, however late."""
    actions = case.ctx.ledger.actions(case.incident_id, evidence=False)
    return any(each.kind in ("hold", "pause") and each.state is not ActionState.FAILED for each in actions)


def request(case: RecoveryContext) -> MoveRequest:
    """Return what is asked for.

    Raises:
        LimitError: no machine is named, it does not serve the job, or it is too late.
        NotNeededError: the request was withdrawn.
    """
    asked = planned_move.asked(case.incident)
    if asked is None:
        raise LimitError("name the machine that the job is to leave")
    if begun(case):
        return asked
    if asked.machine not in case.job_now().machines:
        raise LimitError(f"{asked.machine} does not serve job {case.job} any more: there is nothing to move")
    if planned_move.withdrawn(case.incident, case.ctx.ledger.alerts(case.incident_id)):
        raise NotNeededError(f"not moved: the request was withdrawn ({asked.description}); the job trains on")
    if late := planned_move.too_late(asked, case.ctx.clock.now(), case.ctx.policy.planned_move):
        raise LimitError(f"not moved: {late}")
    return asked


@task(task_run_name="choose what takes over from {case.machine}")
async def choose(case: RecoveryContext) -> str:
    """Return a standby that passed its checks.

    Raises:
        LimitError: none can take over; the job trains on where it is.
    """
    asked = request(case)

    async def act() -> dict[str, Any]:
        ctx, policy = case.ctx, case.ctx.policy.planned_move
        standbys = {each.name: each for each in ctx.ledger.machines(state=MachineState.STANDBY)}
        excluded = swap.excluded(ctx, asked.machine)
        found = planned_move.targets(asked, swap.nearest(ctx, asked.machine), excluded, policy.most_tried)
        failed = [found.why] if found.why else []
        tiers = (
            policy.checks_hurried if planned_move.hurried(asked, ctx.clock.now(), policy) else policy.checks
        )
        for name in found.names:
            if why := await _fails(case, standbys[name], tiers):
                get_run_logger().warning("%s: %s", name, why)
                failed.append(f"{name}: {why}")
                continue
            return {"standby": name, "passed_over": failed}
        more = (
            f"Once a machine stands by, `holdfast move {case.job} {asked.machine}` asks again; a notice or drain that "
            "stands does so by itself"
        )
        raise LimitError(f"not moved: {'; '.join(failed)}; the job trains on. {more}", Missing.STANDBY)

    done = await case.once("choose", asked.machine, {"to": asked.to}, act)
    return str(done["standby"])


async def _fails(case: RecoveryContext, machine: Machine, tiers: tuple[Check, ...]) -> str:
    """Return why the standby may not take over; empty: it passed."""
    checked = await check_machines(case.ctx, "planned-move", [machine], tiers)
    bad = [finding for finding in checked.verdict.findings if not finding.ok]
    return f"{bad[0].check} failed: {bad[0].detail}" if bad else ""


@task(task_run_name="bring {case.job} up on {standby}")
async def bring(case: RecoveryContext, standby: str) -> Brought:
    """Have code, newest shards and the ranks of the next epoch there, while the job trains.

    Raises:
        LimitError: the standby cannot be made ready; the job trains on where it is.
    """
    ctx, asked, job = case.ctx, request(case), case.job_now()
    if begun(case):
        return Brought(epoch=job.epoch + 1, why_not="an earlier attempt stopped the ranks")

    async def act() -> dict[str, Any]:
        until = ctx.clock.now() + ctx.policy.planned_move.bring_s
        if asked.deadline_at is not None:
            until = min(until, asked.deadline_at - ctx.policy.planned_move.margin_s)
        try:
            brought = await move.bring(ctx, job, asked.machine, standby)
            ready = await move.wait_ahead(ctx, job, asked.machine, standby, brought, until)
        except HoldfastError as error:
            why = f"not moved: {standby} cannot be made ready: {error}; the job trains on"
            raise LimitError(why) from error
        return ready.model_dump(mode="json")

    done = await case.once("bring", f"{standby}:e{job.epoch}", {"from": asked.machine}, act)
    brought = Brought.model_validate(done)
    if brought.rendezvous is None:
        get_run_logger().warning("ranks are forked at the switch: %s", brought.why_not)
    request(case)  # it may be too late by now
    return brought

"""Steps of a planned move: the switch at a step boundary, and what becomes of the machine that was left."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from prefect import task
from prefect.logging import get_run_logger

from holdfast.errors import (
    HoldfastError,
    LimitError,
    NoStandbyError,
    RecoveryError,
    ReplacedUnitError,
    StaleError,
    UnknownError,
)
from holdfast.models.agent import Fence, Settled
from holdfast.models.base import Frozen
from holdfast.models.job import JobState
from holdfast.models.machine import MachineState, Scope
from holdfast.operations import fleet, move
from holdfast.operations.evict import order_repair, take_out
from holdfast.operations.hold import hold_ranks, is_held_by_a_playbook
from holdfast.operations.launch import Launched, launch
from holdfast.operations.move import Brought
from holdfast.policies.config.planned_move import Fate
from holdfast.policies.escalate import stop_grace
from holdfast.policies.join_names import join_names
from holdfast.policies.pool import planned_move
from holdfast.policies.pool.planned_move import MoveRequest
from holdfast.tasks.move import request
from holdfast.tasks.recovery_context import RecoveryContext
from holdfast.tasks.resume import verify


class Switched(Frozen):
    """The result of a switch."""

    launched: Launched
    moved: bool
    why_not: str = ""
    """Why the job was started where it was."""
    paused_s: float = 0.0
    """From the last step before the switch to the first one after it, less what a step takes."""

    @property
    def summary(self) -> str:
        """In words."""
        return f"training stood still for {self.paused_s:.2f} s; {self.launched.summary}"


@task(task_run_name="switch {case.job} to {standby}")
async def switch(case: RecoveryContext, standby: str, brought: Brought) -> Switched:
    """Stop all ranks at one boundary, with its very step saved, and start them on the new set of machines.

    When the standby fails at the last moment, the ranks are started again where they were, from the same step.

    Raises:
        LimitError: the ranks could not be held, and train on.
        RecoveryError: a machine did not stop its ranks, or the ranks did not come up.
    """
    asked = request(case)
    held = await _hold(case, asked, standby)
    settled = await _stop(case)
    why_not = await _swap(case, asked, standby)
    started = await _start(case, asked, standby, brought, why_not, settled)
    launched = Launched.model_validate({name: started[name] for name in Launched.model_fields})
    if why := await verify.fn(case, launched.epoch):
        raise RecoveryError(f"epoch {launched.epoch} could not load what was saved at the switch: {why}")
    now = case.ctx.clock.now()
    get_run_logger().info("held at step %d, on from step %d", held["step"], launched.step)
    return Switched(
        launched=launched,
        moved=not started["why_not"],
        why_not=str(started["why_not"]),
        paused_s=max(0.0, now - float(held["at"]) - float(held["step_s"])),
    )


async def _hold(case: RecoveryContext, asked: MoveRequest, standby: str) -> dict[str, Any]:
    ctx, job = case.ctx, case.job_now()

    async def act() -> dict[str, Any]:
        if not _is_there(case, standby):  # a notice for it too, while it was made ready
            raise LimitError(f"not moved: {standby} does not stand by any more; the job trains on")
        # One that was stopped meanwhile stays so, and one that has ended its work too.
        case.ledger.set_job(case.job, state=JobState.RECOVERING, unless=JobState.STOPPED)
        try:
            held = await move.hold_for_move(ctx, job, asked.machine, standby)
        except HoldfastError as error:
            if case.job_now().state is JobState.RECOVERING:
                case.ledger.set_job(case.job, state=JobState.RUNNING, unless=JobState.STOPPED)
            raise LimitError(f"not moved: {error}; the job trains on") from error
        return held.model_dump(mode="json")

    try:
        return await case.once("hold", case.life, {"epoch": job.epoch, "machine": asked.machine}, act)
    except StaleError:
        # What came first may look for its cause, or ask a person, while the job trains.
        with contextlib.suppress(HoldfastError):
            # Nor those that a person holds: this run may have slept for long.
            paused = case.job_now().state is JobState.PAUSED
            if not paused and not is_held_by_a_playbook(ctx, case.job):
                await hold_ranks(ctx, job, None)
        raise


def _is_there(case: RecoveryContext, standby: str) -> bool:
    """Return whether the standby may still be taken, or an earlier attempt took it."""
    try:
        known = case.ctx.ledger.machine(standby)
    except UnknownError:
        return False
    return known.state is MachineState.STANDBY or known.serves(case.job)


async def _stop(case: RecoveryContext) -> Mapping[str, Settled]:
    """Stop the held ranks, on the machine that is left too; return the machines' states, if this attempt did it."""
    ctx, job, seen = case.ctx, case.job_now(), dict[str, Settled]()

    async def act() -> dict[str, Any]:
        grace_s = stop_grace.grace_s(job.spec, case.incident_class)
        answers = await fleet.settle(ctx, case.machines_now(), case.job, job.epoch, grace_s=grace_s)
        if lost := fleet.lost(answers):
            raise RecoveryError(f"{join_names(lost)} did not stop the ranks of epoch {job.epoch}")
        seen.update(fleet.all_or_raise(answers))
        case.ledger.close_epoch(case.job, job.epoch, f"moved by {case.incident_id}", ctx.clock.now())
        return {"epoch": job.epoch}

    await case.once("pause", case.life, {"epoch": job.epoch}, act)
    return seen


async def _swap(case: RecoveryContext, asked: MoveRequest, standby: str) -> str:
    """Give the slot to the standby; return why it could not be had."""
    if done := [action for action in case.done("swap") if action.key == f"swap:{asked.machine}"]:
        return str((done[-1].result or {}).get("why", ""))
    # The newest epoch's machines: an attempt that was killed may have changed the job's own already.
    slot = case.ctx.ledger.epochs(case.job)[-1].machines.index(asked.machine)

    async def act() -> dict[str, Any]:
        ledger, machines = case.ledger, list(case.job_now().machines)
        if machines[slot] != asked.machine:
            return {"slot": slot, "from": asked.machine, "to": machines[slot]}
        known = ledger.machine(standby)
        if known.state is not MachineState.ACTIVE or known.job != case.job or known.role:
            others = {each.name for each in ledger.machines(state=MachineState.STANDBY)} - {standby}
            try:
                (claimed,) = ledger.claim_standbys(case.job, 1, sorted(others), [standby])
                if claimed.name != standby:  # another joined the pool just now
                    ledger.set_machine(claimed.name, state=MachineState.STANDBY)
                    raise NoStandbyError(standby)
            except NoStandbyError:
                return {
                    "slot": slot,
                    "from": asked.machine,
                    "to": "",
                    "why": f"{standby} does not stand by any more",
                }
        leaving = ledger.machine(asked.machine)
        ledger.drain(
            asked.machine,
            leaving.incarnation,
            Scope.CLUSTER,
            asked.left_because,
            case.job,
            case.lease,
        )
        machines[slot] = standby
        ledger.set_job(case.job, machines=tuple(machines))
        return {"slot": slot, "from": asked.machine, "to": standby}

    return str((await case.once("swap", asked.machine, {"slot": slot}, act)).get("why", ""))


async def _start(  # noqa: PLR0917
    case: RecoveryContext,
    asked: MoveRequest,
    standby: str,
    brought: Brought,
    why_not: str,
    settled: Mapping[str, Settled],
) -> dict[str, Any]:
    ctx, reason = case.ctx, f"planned move {case.incident_id}"

    async def start(ahead: Brought | None) -> Launched:
        rendezvous, seen = (ahead.rendezvous, settled) if ahead else (None, None)
        return await launch(
            ctx,
            case.job,
            reason,
            incident_id=case.incident_id,
            ledger=case.ledger,
            ahead=rendezvous,
            settled=seen,
            leaving=(asked.machine,),
        )

    async def act() -> dict[str, Any]:
        why = why_not
        if not why and asked.machine in case.job_now().machines:  # an earlier attempt put it back
            why = f"{standby} did not start its ranks"
        if not why:
            try:
                launched = await start(brought)
            except StaleError:
                raise
            except HoldfastError as error:
                why = f"{standby} did not start its ranks: {error}"
                get_run_logger().error("%s", why)
                await _put_back(case, asked, standby)
        if why:
            launched = await start(None)
        return launched.model_dump(mode="json") | {"why_not": why}

    return await case.once("start", f"after-{case.life}", {"ahead": brought.rendezvous is not None}, act)


async def _put_back(case: RecoveryContext, asked: MoveRequest, standby: str) -> None:
    """Give the slot back to the machine that was to be left: it is there, with its state in its memory.

    Raises:
        HoldfastError: the standby does not answer, and cannot be taken out: ranks may run there.
    """
    ledger, job = case.ledger, case.job_now()
    there = ledger.machine(standby)
    ended = Fence(job=case.job, epoch=job.epoch, incarnation=there.incarnation)
    answers = await fleet.ask(case.ctx, [there], lambda agent, _: agent.forget(ended))
    if isinstance(answers[standby], HoldfastError):
        why = f"did not start its ranks for {case.incident_id}, nor end them: {answers[standby]}"
        await take_out(
            case.ctx, standby, why, Scope.CLUSTER, there.incarnation, job=case.job, holder=case.lease
        )
    ledger.set_machine(
        asked.machine, state=MachineState.ACTIVE, job=case.job, cordon_scope=None, cordon_reason=None
    )
    ledger.set_job(
        case.job, machines=tuple(asked.machine if name == standby else name for name in job.machines)
    )
    if not isinstance(answers[standby], HoldfastError):
        ledger.set_machine(standby, state=MachineState.STANDBY)


@task(task_run_name="hand {case.machine} back")
async def hand_back(case: RecoveryContext) -> str:
    """Let go of the machine that was left, as the policy has it; return what became of it."""
    ctx = case.ctx
    asked = planned_move.asked(case.incident)
    assert asked is not None
    fate = ctx.policy.planned_move.afterwards[asked.source]

    async def act() -> dict[str, Any]:
        machine = ctx.ledger.machine(asked.machine)
        if asked.machine in case.job_now().machines:  # it has its place again: ranks of the job run there
            return {"fate": "in service"}
        if machine.state not in (MachineState.ACTIVE, MachineState.DRAINING) or machine.job != case.job:
            return {"fate": machine.state.value}
        if fate is Fate.STANDBY:
            ended = Fence(job=case.job, epoch=case.job_now().epoch - 1, incarnation=machine.incarnation)
            forgot = await fleet.ask(ctx, [machine], lambda agent, _: agent.forget(ended))
            if not fleet.lost(forgot):
                case.ledger.set_machine(asked.machine, state=MachineState.STANDBY)
                return {"fate": fate.value}
        why = f"left by {case.incident_id}: {asked.description}"
        life = _life_asked_about(case, asked.machine) or machine.incarnation
        try:
            await take_out(ctx, asked.machine, why, Scope.CLUSTER, life, job=case.job, holder=case.lease)
        except ReplacedUnitError as error:
            # Its engine was faster, as a drain that evicts the pod: what has its name now is elsewhere, and good.
            get_run_logger().warning("%s", error)
            ctx.ledger.let_go(asked.machine, life, case.job, case.lease)
            return {"fate": "restarted since"}
        if fate is Fate.REPAIR:
            order_repair(ctx, asked.machine, case.incident_id, life)
        return {"fate": fate.value}

    done = await case.once("hand_back", asked.machine, {"fate": fate.value}, act)
    return str(done["fate"])


def _life_asked_about(case: RecoveryContext, machine: str) -> str:
    """Return the incarnation that the newest request to leave the machine names; empty: none does."""
    lives = [alert.incarnation for alert in case.incident.alerts if alert.machine == machine]
    return next((life for life in reversed(lives) if life), "")

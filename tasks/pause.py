"""Step: stop the ranks of a broken epoch everywhere, and fence it so that nothing of it can act again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from prefect import task
from prefect.logging import get_run_logger

from holdfast.agent.client import AgentClient
from holdfast.errors import (
    AnewError,
    HoldfastError,
    LimitError,
    RecoveryError,
    RefusedError,
    StaleError,
    UnavailableError,
)
from holdfast.models.agent import AgentState, Fence, Hold, RankPhase, RankState
from holdfast.models.job import ENDED, Job, JobState
from holdfast.models.machine import Machine, MachineState, Scope
from holdfast.models.missing import Missing
from holdfast.policies import stop_grace
from holdfast.policies.listed import listed
from holdfast.storage.ledger import Ledger
from holdfast.tasks import fleet
from holdfast.tasks.case import Case
from holdfast.tasks.context import Context, context
from holdfast.tasks.fitness import why_unfit
from holdfast.tasks.persist import persist, persist_soon

HOLD_TIMEOUT_S = 30.0
HOLD_AHEAD = 2
"""Steps from the furthest rank to the boundary that all are held at; doubled each time that one passed it before."""


@dataclass(frozen=True)
class Fenced:
    """What came of telling machines to stop; by name."""

    states: Mapping[str, AgentState]
    """What each machine has, once its ranks were gone."""
    lost: tuple[str, ...] = ()
    """Those that could not be told."""
    silent: tuple[str, ...] = ()
    """Of these, those that may run on: nothing came back from them."""


async def fence(
    ctx: Context,
    machines: list[Machine],
    job: str,
    epoch: int,
    *,
    given_up: Collection[str] = (),
    grace_s: float = 0.0,
) -> Fenced:
    """Stop ranks of ``job`` up to ``epoch`` on ``machines``; those ``given_up`` already are not waited for long.

    Ranks that handle SIGTERM have ``grace_s`` seconds to end.
    """
    answers = await fleet.settle(ctx, machines, job, epoch, given_up=given_up, grace_s=grace_s)
    states = {name: settled.state for name, settled in fleet.answered(answers).items()}
    return Fenced(states, lost=fleet.lost(answers), silent=fleet.silent(answers))


@task(task_run_name="pause {case.job}")
async def pause(case: Case) -> tuple[str, ...]:
    """Stop and fence the broken epoch; returns the machines that did not answer.

    Their ranks may still run: they must be evicted before the job goes on (``resume`` refuses otherwise).

    Raises:
        LimitError: more of them than may be evicted at once do not answer: it may be our own network.
    """

    async def act() -> dict[str, Any]:
        machines = case.machines_now()
        job = case.job_now()
        allowed_s = stop_grace.grace_s(job.spec.stop_grace_s, case.incident_class)
        told = await fence(
            case.ctx, machines, case.job, case.broken_epoch, given_up=case.accused, grace_s=allowed_s
        )
        persist_soon(case.ctx, job, machines, told.states, case.last_good_step)
        case.ledger.close_epoch(
            case.job, case.broken_epoch, f"paused by {case.incident_id}", case.ctx.clock.now()
        )
        return {"unreachable": list(told.lost), "silent": list(told.silent)}

    intent = {"epoch": case.broken_epoch, "incarnations": case.incarnations()}
    done = await case.once("pause", case.life, intent, act)
    unreachable = tuple(done["unreachable"])
    if unreachable:
        get_run_logger().warning("no answer from %s", listed(unreachable))
    _must_be_few(case, done.get("silent", ()))
    return unreachable


def _must_be_few(case: Case, silent: Sequence[str]) -> None:
    """A machine that refuses is dead; of many that are silent at once, few are."""
    limit = case.ctx.policy.aggregate.limit(len(case.job_now().machines))
    if len(silent) > limit:
        raise LimitError(
            f"{listed(silent)} do not answer, more than the over-eviction limit of {limit}: the network between them "
            "and the playbook worker may be cut. Nothing was evicted; mend it, then `holdfast resume`",
            Missing.CONTACT,
        )


async def hold(job_name: str, at_step: int | None) -> int | None:
    """Hold a job for a person at a step boundary (``at_step`` None: let it go); returns the step it holds at.

    ``at_step`` 0 means "as soon as possible": the earliest boundary that no rank has passed yet.

    Raises:
        RefusedError: the job does not run, or its ranks did not reach the boundary in time (they go on).
    """
    ctx = context()
    job = ctx.ledger.job(job_name)
    if job.state not in (JobState.RUNNING, JobState.PAUSED):
        raise RefusedError(f"job {job_name} is {job.state}: only a running job can be held")
    held = await _hold_ranks(ctx, job, at_step)
    ctx.ledger.set_job(job_name, state=JobState.RUNNING if held is None else JobState.PAUSED)
    return held


async def _hold_ranks(ctx: Context, job: Job, at_step: int | None) -> int | None:
    """Hold the ranks, or let them go; leaves the job's state alone.

    Ranks are at most one step apart, so the boundary after the next one is ahead of all of them, unless they passed it
    before all machines were told. Some are held there then, while others wait for them in the middle of a later step:
    they are led to a boundary that is further ahead.
    """
    machines = ctx.ledger.machines_named(job.machines)
    if at_step is None:
        await _tell_hold(ctx, job, machines, None)
        return None
    ahead = HOLD_AHEAD
    at_step = at_step or _furthest(await _ranks(ctx, machines, job.name)) + ahead
    await _tell_hold(ctx, job, machines, at_step)
    deadline = ctx.clock.now() + HOLD_TIMEOUT_S
    while ctx.clock.now() < deadline:
        ranks = await _ranks(ctx, machines, job.name)
        if any(rank.phase is RankPhase.EXITED for rank in ranks):
            raise RefusedError(f"job {job.name}: a rank ended before step {at_step}")
        held_at = {rank.step for rank in ranks if rank.paused}
        if len(ranks) == job.spec.world_size and all(rank.paused for rank in ranks) and len(held_at) == 1:
            return held_at.pop()
        if _furthest(ranks) > at_step:
            ahead *= 2
            at_step = _furthest(ranks) + ahead
            await _tell_hold(ctx, job, machines, at_step)
        await asyncio.sleep(0.02)
    await _tell_hold(ctx, job, machines, None)
    raise RefusedError(f"job {job.name} did not reach step {at_step} in {HOLD_TIMEOUT_S:.0f} s; it goes on")


async def _tell_hold(ctx: Context, job: Job, machines: list[Machine], at_step: int | None) -> None:
    def order(machine: Machine) -> Hold:
        return Hold(job=job.name, epoch=job.epoch, incarnation=machine.incarnation, at_step=at_step)

    fleet.all_or_raise(await fleet.ask(ctx, machines, lambda agent, machine: agent.hold(order(machine))))


def _furthest(ranks: Sequence[RankState]) -> int:
    return max((rank.step for rank in ranks), default=0)


async def stop(job_name: str, ledger: Ledger | None = None) -> None:
    """Stop a job for good: fence its ranks everywhere, give its machines to the standby pool.

    Args:
        job_name: the job.
        ledger: where it is written; None: the site's, whoever else acts on the job.

    Raises:
        StaleError: another run acts on the job; it was not stopped.
    """
    ctx = context()
    ledger = ledger or ctx.ledger
    job = ctx.ledger.job(job_name)
    machines = ctx.ledger.machines_named(job.machines)
    ledger.set_job(job_name, state=JobState.STOPPED, done_at=ctx.clock.now())
    told = await fence(ctx, machines, job_name, job.epoch, grace_s=stop_grace.grace_s(job.spec.stop_grace_s))
    await persist(ctx, job, machines, told.states)
    ledger.close_epoch(job_name, job.epoch, "stopped", ctx.clock.now())
    await free_machines(ctx, job_name)


async def free_machines(ctx: Context, job_name: str) -> None:
    """Give the machines of an ended job back to the standby pool, their memory emptied; unfit ones are cordoned.

    Raises:
        StaleError: the job has not ended (any more).
        HoldfastError: an unfit machine could not be taken out; the others are where they belong.
    """
    job = ctx.ledger.job(job_name)
    if job.state not in ENDED:
        raise StaleError(f"job {job_name} is {job.state}: its machines stay with it")
    machines = ctx.ledger.machines(state=MachineState.ACTIVE, job=job_name)

    def forget(agent: AgentClient, machine: Machine) -> Awaitable[None]:
        return agent.forget(Fence(job=job_name, epoch=job.epoch, incarnation=machine.incarnation))

    await fleet.ask(ctx, machines, forget)
    unfit = await fleet.each(machines, lambda machine: why_unfit(ctx, machine))
    ctx.ledger.give_back([machine.name for machine in machines if not unfit[machine.name]], job_name)
    failed: list[HoldfastError] = []
    for machine in machines:
        if unfit[machine.name]:
            why = f"not fit for the standby pool: {unfit[machine.name]}"
            try:
                await take_out(ctx, machine.name, why, Scope.CLUSTER, machine.incarnation, job=job_name)
            except AnewError:
                ctx.ledger.let_go(machine.name, machine.incarnation, job_name)
            except HoldfastError as error:
                failed.append(error)
    if failed:
        raise failed[0]


async def halt(ctx: Context, job_name: str) -> None:
    """Stop a job's ranks and leave it to a person: nothing of it runs, its machines stay with it."""
    job = ctx.ledger.job(job_name)
    await fence(ctx, ctx.ledger.machines_named(job.machines), job_name, job.epoch)


async def take_out(
    ctx: Context,
    machine: str,
    reason: str,
    scope: Scope,
    incarnation: str,
    *,
    job: str | None = None,
    holder: str = "",
) -> None:
    """Drain, evict and cordon one machine; returns when the engine says that it is out.

    Whoever calls may have been asleep since it decided: the ledger checks the lease and the machine before and after,
    the driver checks what it would evict.

    Args:
        ctx: services.
        machine: its name.
        reason: for people.
        scope: whom the cordon keeps away.
        incarnation: the one that is meant.
        job: that it must still serve.
        holder: who acts under that job's lease.

    Raises:
        AnewError: the machine was started anew since; nothing was done to the new one.
        StaleError: the lease is somebody else's, or the machine serves another job or none.
        RecoveryError: it still lives.
    """
    ctx.ledger.drain(machine, incarnation, scope, reason, job, holder)
    await asyncio.to_thread(ctx.driver.evict, machine, scope, reason, incarnation)
    if any(seen.alive for seen in await asyncio.to_thread(ctx.driver.machines) if seen.name == machine):
        ctx.ledger.drain(
            machine, incarnation, scope, reason, job, holder
        )  # it may be meant for somebody else by now
        raise RecoveryError(f"machine {machine} still lives after its eviction")
    ctx.ledger.cordon(machine, incarnation, job, holder)


@task(task_run_name="hold {case.job} at a step boundary")
async def hold_at_boundary(case: Case) -> None:
    """Let every rank finish its step and save it, so that nothing has to be computed again."""

    async def act() -> dict[str, Any]:
        try:
            step = await _hold_ranks(case.ctx, case.job_now(), 0)
        except (RefusedError, UnavailableError) as refused:
            # It still may be stopped: every step is in memory already.
            return {"held": False, "why": str(refused)}
        return {"held": True, "step": step}

    await case.once("hold", case.life, {}, act)


async def _ranks(ctx: Context, machines: list[Machine], job: str) -> list[RankState]:
    answers = fleet.answered(await fleet.ask(ctx, machines, lambda agent, _: agent.state(shards=False)))
    return [rank for state in answers.values() for run in state.jobs if run.job == job for rank in run.ranks]

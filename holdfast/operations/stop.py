"""End a job for good, and give its machines back to the standby pool."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Awaitable, Sequence

from holdfast.agent.client import AgentClient
from holdfast.errors import (
    HoldfastError,
    ReplacedUnitError,
    StaleError,
    UnavailableError,
    UndyingError,
    UnknownError,
)
from holdfast.models.agent import Fence
from holdfast.models.job import ENDED, Job, JobState
from holdfast.models.machine import Machine, MachineState, Scope
from holdfast.operations import fleet, start_from
from holdfast.operations.context import Context
from holdfast.operations.evict import take_out
from holdfast.operations.fence import fence
from holdfast.operations.fitness import why_unfit
from holdfast.operations.persist import persist
from holdfast.policies.escalate import stop_grace
from holdfast.policies.join_names import join_names
from holdfast.storage.ledger import Ledger

_log = logging.getLogger(__name__)

FORGET_S = 15.0


async def stop(ctx: Context, job_name: str, ledger: Ledger | None = None) -> None:
    """Stop a job for good: fence its ranks everywhere, give its machines to the standby pool.

    Args:
        ctx: services.
        job_name: the job.
        ledger: where it is recorded; None: the site's, even if another run acts on the job.

    Raises:
        StaleError: another run acts on the job; it was not stopped.
    """
    ledger = ledger or ctx.ledger
    job = ctx.ledger.job(job_name)
    if job.state is not JobState.DONE:  # that it is done stays true: only its machines are given back
        # First: from now on no playbook starts another epoch, and what it started before is seen here.
        job = ledger.set_job(job_name, state=JobState.STOPPED, done_at=ctx.clock.now())
    there = {machine.name: machine for machine in ctx.ledger.machines()}
    machines = [
        there[name] for name in job.machines if name in there
    ]  # after a stop of the site there may be others
    fenced = await fence(ctx, machines, job_name, job.epoch, grace_s=stop_grace.grace_s(job.spec))
    await persist(ctx, job, machines, fenced.states)
    with contextlib.suppress(UnknownError):  # a playbook had counted it, and not opened it yet
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
    with contextlib.suppress(UnavailableError):
        await start_from.give_back(ctx, job)
    await give_back(ctx, job, ctx.ledger.machines(state=MachineState.ACTIVE, job=job_name))


async def give_back(ctx: Context, job: Job, machines: Sequence[Machine]) -> None:
    """Give machines that serve a job without need back to the standby pool: see :func:`free_machines`.

    One of a job that has ended whose agent does not answer stays with it: its ranks may run on. So does one with
    processes that do not die, whatever the job's state.

    Raises:
        StaleError: the job has not ended, and is being changed or has a slot for one of them.
        HoldfastError: an unfit machine could not be taken out; the others are where they belong.
    """

    # Replicas get their grace, and what they started some seconds to be gone.
    timeout_s = FORGET_S + max((role.stop_grace_s for role in job.spec.roles.values()), default=0.0)

    def forget(agent: AgentClient, machine: Machine) -> Awaitable[None]:
        fence = Fence(job=job.name, epoch=job.epoch, incarnation=machine.incarnation)
        return agent.forget(fence, timeout_s=timeout_s)

    forgot = await fleet.ask(ctx, machines, forget)
    if job.state in ENDED and (silent := fleet.silent(forgot)):
        # Its ranks may run on there: another job must not get it. The gateway asks again, until it is found dead.
        _log.warning("job %s: %s keep what it left: no answer", job.name, join_names(silent))
        machines = [machine for machine in machines if machine.name not in silent]
    if undying := [name for name, answer in forgot.items() if isinstance(answer, UndyingError)]:
        # The gateway asks again, until they are gone, or a person evicts the machine.
        reason = forgot[undying[0]]
        _log.warning("job %s: %s keep what does not die: %s", job.name, join_names(undying), reason)
        machines = [machine for machine in machines if machine.name not in undying]
    unfit = await fleet.each(machines, lambda machine: why_unfit(ctx, machine))
    fit, bad = ([each.name for each in machines if bool(unfit[each.name]) is so] for so in (False, True))
    ctx.ledger.give_back(fit, job.name, bad)
    failed: list[HoldfastError] = []
    for machine in machines:
        if unfit[machine.name]:
            why = f"not fit for the standby pool: {unfit[machine.name]}"
            try:
                await take_out(ctx, machine.name, why, Scope.CLUSTER, machine.incarnation, job=job.name)
            except ReplacedUnitError:
                ctx.ledger.let_go(machine.name, machine.incarnation, job.name)
            except HoldfastError as error:
                failed.append(error)
    if failed:
        raise failed[0]

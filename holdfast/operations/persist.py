"""When ranks died, a stop was ordered or a job has ended: the newest step in memory goes to S3, beside all else."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from functools import partial

from holdfast.agent.client import AgentClient
from holdfast.errors import CheckpointError, HoldfastError
from holdfast.models.agent import AgentState, Persist
from holdfast.models.job import Job
from holdfast.models.machine import Machine, MachineState
from holdfast.operations import fleet
from holdfast.operations.context import Context
from holdfast.policies.restore import lineage, triggered_save

_log = logging.getLogger(__name__)
_ORDER_S = 5.0
_under_way: set[asyncio.Task[int | None]] = set()


def persist_soon(
    ctx: Context,
    job: Job,
    machines: Sequence[Machine],
    states: Mapping[str, AgentState],
    bound: int | None = None,
) -> None:
    """Run :func:`persist` without waiting for it: recovery continues at once."""
    task = asyncio.get_running_loop().create_task(persist(ctx, job, machines, states, bound))
    _under_way.add(task)  # the loop itself keeps only a weak reference
    task.add_done_callback(_under_way.discard)


async def persist(
    ctx: Context,
    job: Job,
    machines: Sequence[Machine],
    states: Mapping[str, AgentState],
    bound: int | None = None,
) -> int | None:
    """Order the newest complete step in memory to S3, if it is newer than what is there; return the step, or None.

    ``states`` are what the machines reported once nothing of the job ran any more, by name.

    Returns when the agents have put it aside from later saves; they upload it by themselves, within their own
    bounds. No failure here is worth stopping a recovery for: it is logged.
    """
    try:
        return await asyncio.wait_for(_order(ctx, job, machines, states, bound), _ORDER_S)
    except (HoldfastError, TimeoutError) as error:
        _log.warning("job %s: the newest step in memory is not saved to S3: %s", job.name, error)
        return None


async def persist_last(ctx: Context, job_name: str) -> bool:
    """Order the newest step of a job that has ended to S3; return whether its machines hold nothing that S3 lacks.

    Its ranks are gone: what the machines hold is all that will ever be. False: ask again, the upload is under way or
    an agent did not answer: it may hold what makes a newer step complete. An agent's refusal (it cannot upload what it
    holds) is final, and logged.
    """
    job = ctx.ledger.job(job_name)
    machines = ctx.ledger.machines(state=MachineState.ACTIVE, job=job_name, role="")
    states = fleet.answered(await fleet.ask(ctx, machines, lambda agent, _: agent.state()))
    try:
        step = await asyncio.wait_for(_order(ctx, job, machines, states, None), _ORDER_S)
    except (HoldfastError, TimeoutError) as error:
        _log.warning("job %s has ended: its last step is not in S3 yet: %s", job.name, error)
        return isinstance(error, CheckpointError)
    return step is None and len(states) == len(machines)


def triggered(
    ctx: Context, job: Job, states: Mapping[str, AgentState], bound: int | None = None
) -> triggered_save.TriggeredSave | None:
    """Return the newest complete step in memory that may be restored, if S3 has no newer one: see :func:`persist`."""
    epochs, suspicions = ctx.ledger.epochs(job.name), ctx.ledger.suspicions(job.name)
    shards = [
        shard
        for state in states.values()
        for shard in state.shards
        if shard.job == job.name and not any(each.covers(shard.epoch, shard.step) for each in suspicions)
    ]
    return triggered_save.choose(
        lineage.valid(shards, epochs),
        lineage.valid(ctx.ledger.checkpoints(job.name, include_suspect=False), epochs),
        job.spec.world_size,
        bound,
    )


async def _order(
    ctx: Context,
    job: Job,
    machines: Sequence[Machine],
    states: Mapping[str, AgentState],
    bound: int | None,
) -> int | None:
    """Order it; where a machine is gone since it answered, order what the others hold. Return the step, or None.

    Raises:
        HoldfastError: of a machine without which no step is complete.
    """
    left, errors = dict(states), list[HoldfastError]()
    while (save := triggered(ctx, job, left, bound)) is not None:
        asked = [machine for machine in machines if machine.name in save.uploads]
        answers = await fleet.ask(ctx, asked, partial(_order_of_one, job, save))
        failed = {name: answer for name, answer in answers.items() if isinstance(answer, HoldfastError)}
        if not failed:
            return save.step
        errors += failed.values()
        left = {name: state for name, state in left.items() if name not in failed}
    if errors:  # a machine that is gone may come back with what it holds; a refusal is final
        raise next((each for each in errors if not isinstance(each, CheckpointError)), errors[0])
    return None


async def _order_of_one(
    job: Job, save: triggered_save.TriggeredSave, agent: AgentClient, machine: Machine
) -> None:
    await agent.persist(
        Persist(
            job=job.name,
            epoch=job.epoch,
            incarnation=machine.incarnation,
            step=save.step,
            shard_epoch=save.epoch,
            world_size=save.world_size,
            ranks=save.uploads[machine.name],
        )
    )

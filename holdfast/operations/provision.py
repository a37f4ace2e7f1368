"""Ask the driver for machines, and have the code of jobs on those that stand by."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from holdfast.drivers.base import meant
from holdfast.errors import HoldfastError, ReplacedUnitError
from holdfast.models.job import ENDED, Job
from holdfast.models.machine import Machine, MachineState
from holdfast.operations import fleet
from holdfast.operations.context import Context
from holdfast.operations.turn import turn
from holdfast.policies.pool.machine_groups import group_of

_log = logging.getLogger(__name__)

Log = logging.Logger | logging.LoggerAdapter[logging.Logger]
"""A task's lines belong to its run."""

_TURN = "provisioning"
"""Recoveries that begin or end at once, and the schedule, would each ask for the same machines."""


async def provision_for_now(ctx: Context, group: str) -> None:
    """Ask for a machine of the group for each slot of a job that has none, unless so many are on their way.

    Of an elastic job, for each that it wants beyond what stands by: it dropped the slots of those that it lost.
    At least one: who asks may have evicted nothing yet. Those that ask at once ask once.
    """
    if not await _lacking(ctx, group):
        return
    async with turn(ctx.ledger, _TURN):
        if lacking := await _lacking(ctx, group):
            await _provision(ctx, lacking, group)


async def _lacking(ctx: Context, group: str) -> int:
    """Return how many machines of the group are to be asked for."""
    known = {machine.name: machine for machine in ctx.ledger.machines()}
    jobs = [job for job in ctx.ledger.jobs() if job.state not in ENDED]
    slots = [
        name for job in jobs for name in job.machines if name not in known or not known[name].serves(job.name)
    ]
    dropped = [
        job.machines[0]  # a slot is filled by the kind that it had
        for job in jobs
        if job.spec.elastic is not None and job.machines
        for _ in range(job.spec.elastic.want - len(job.machines))
    ]
    standing_by = [machine.name for machine in known.values() if machine.state is MachineState.STANDBY]
    made = [machine for machine in known.values() if machine.state is MachineState.PROVISIONING]
    lost = {machine.name for machine in await _never_come(ctx, made)}
    on_the_way = [machine.name for machine in made if machine.name not in lost]

    def of_group(names: Sequence[str]) -> int:
        return sum(group_of(name, ctx.policy.spare_pool) == group for name in names)

    to_grow = max(of_group(dropped) - of_group(standing_by), 0)
    return max(max(of_group(slots) + to_grow, 1) - of_group(on_the_way), 0)


async def make_ready(ctx: Context, job: Job) -> None:
    """Check the job's code out on all standbys, so that a swap need not wait for it; failures do not matter."""
    await fleet.prepare_code(ctx, job, job.code_version, ctx.ledger.machines(state=MachineState.STANDBY))


async def provision_shortfall(ctx: Context) -> list[str]:
    """Provision target minus (standby + provisioning) machines, by group; returns their names.

    A machine that died before it ever registered is given back first: it would be waited for without end. Runs that
    find the same shortfall at once ask for it once.
    """
    await _give_up(ctx)
    if not _shortfall(ctx):
        return []
    async with turn(ctx.ledger, _TURN):
        names: list[str] = []
        for group, short in _shortfall(ctx).items():
            names += await _provision(ctx, short, group)
        return names


async def _provision(ctx: Context, machines: int, group: str) -> list[str]:
    asked = (machines, group) if group else (machines,)
    made = await asyncio.to_thread(ctx.driver.provision, *asked)
    # At once: what is provisioned and not in the ledger would be provisioned again.
    ctx.ledger.add_provisioning(made)
    return made


def _shortfall(ctx: Context) -> dict[str, int]:
    """Return how many machines are short of the pool's target, of each group that is short."""
    pool = ctx.ledger.pool()
    # Before the schedule sized the pool for the first time, the policy's minimum counts.
    target = pool.target if pool.at else ctx.policy.spare_pool.minimum
    here = [
        machine.name
        for state in (MachineState.STANDBY, MachineState.PROVISIONING)
        for machine in ctx.ledger.machines(state=state)
    ]
    short = {}
    for group, wanted in (pool.groups or {"": target}).items():
        mine = [name for name in here if not pool.groups or group_of(name, ctx.policy.spare_pool) == group]
        if wanted > len(mine):
            short[group] = wanted - len(mine)
    return short


async def _never_come(ctx: Context, made: Sequence[Machine]) -> list[Machine]:
    """Return those of ``made`` that their engine reports as dead; one that it does not list may be in its queue."""
    if not made:
        return []
    try:
        supplied = await asyncio.to_thread(ctx.driver.machines)
    except HoldfastError as error:
        _log.warning("whether machines are still on their way is not known: %s", error)
        return []
    dead = {each.name for each in supplied if not each.alive}
    return [machine for machine in made if machine.name in dead]


async def _give_up(ctx: Context) -> None:
    """Give back machines that died on their way, if they never registered.

    One that its engine does not let go drains, as one that is retired does.
    """
    made = ctx.ledger.machines(state=MachineState.PROVISIONING)
    for machine in await _never_come(ctx, [known for known in made if not known.incarnation]):
        if not ctx.ledger.withdraw_unregistered(machine.name):
            continue
        _log.warning("machine %s died before it registered: it is given back", machine.name)
        await give_back(ctx, machine, _log)


async def give_back(ctx: Context, machine: Machine, log: Log) -> bool:
    """Give a machine that was withdrawn from the pool back to the engine; return whether it is gone.

    This process may sleep on the way while another run does it, and the name comes back for a machine that trains: the
    engine and the ledger look at the incarnation.

    Killed half way it is found again: it drains without a job. So is one that its engine does not let go: the pool is
    filled all the same.
    """
    retire = ctx.driver.retire
    try:
        await asyncio.to_thread(retire, *meant(retire, machine.name, machine.incarnation))
    except ReplacedUnitError as error:
        log.warning("%s", error)
        return False
    except HoldfastError as error:
        log.error("%s drains, and is not given back yet: %s", machine.name, error)
        return False
    return ctx.ledger.remove_retired(machine.name, machine.incarnation)

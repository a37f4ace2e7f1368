"""Ask the driver for machines, and have the code of jobs on those that stand by."""

from __future__ import annotations

import asyncio

from holdfast.models.job import Job
from holdfast.models.machine import MachineState
from holdfast.operations import fleet
from holdfast.operations.context import Context
from holdfast.policies.pool.machine_groups import group_of


async def provision_for_now(ctx: Context, group: str) -> None:
    """Ask for one machine of the group, unless one is on its way."""
    on_the_way = ctx.ledger.machines(state=MachineState.PROVISIONING)
    if not any(group_of(known.name, ctx.policy.spare_pool) == group for known in on_the_way):
        asked = (1, group) if group else (1,)
        ctx.ledger.add_provisioning(await asyncio.to_thread(ctx.driver.provision, *asked))


async def make_ready(ctx: Context, job: Job) -> None:
    """Check the job's code out on all standbys, so that a swap need not wait for it; failures do not matter."""
    await fleet.prepare_code(ctx, job, job.code_version, ctx.ledger.machines(state=MachineState.STANDBY))


async def provision_shortfall(ctx: Context) -> list[str]:
    """Provision target minus (standby + provisioning) machines, by group; returns their names."""
    pool = ctx.ledger.pool()
    # Before the schedule sized the pool for the first time, the policy's minimum counts.
    target = pool.target if pool.at else ctx.policy.spare_pool.minimum
    here = [
        machine.name
        for state in (MachineState.STANDBY, MachineState.PROVISIONING)
        for machine in ctx.ledger.machines(state=state)
    ]
    policy = ctx.policy.spare_pool
    names: list[str] = []
    for group, wanted in (pool.groups or {"": target}).items():
        mine = [name for name in here if not pool.groups or group_of(name, policy) == group]
        if (short := wanted - len(mine)) > 0:
            asked = (short, group) if group else (short,)
            made = await asyncio.to_thread(ctx.driver.provision, *asked)
            # At once: what is provisioned and not in the ledger would be provisioned again.
            ctx.ledger.add_provisioning(made)
            names += made
    return names

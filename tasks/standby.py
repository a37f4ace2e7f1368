"""Steps: fill the slots of evicted machines from the standby pool; refill the pool in the background."""

from __future__ import annotations

import asyncio
from typing import Any

from prefect import task
from prefect.logging import get_run_logger

from holdfast.errors import HoldfastError, NoStandbyError
from holdfast.models.job import Job
from holdfast.models.machine import Machine, MachineState
from holdfast.policies.listed import listed
from holdfast.policies.machine_groups import group_of
from holdfast.tasks import flaps, fleet
from holdfast.tasks.case import Case
from holdfast.tasks.context import Context


@task(task_run_name="swap in standbys for {case.job}")
async def swap_in(case: Case) -> dict[str, str]:
    """Give every slot whose machine is out of service a standby; returns old name to new name.

    With too few standbys the shortfall is provisioned and waited for.

    Raises:
        NoStandbyError: none came within the policy's time.
    """
    # Those of earlier attempts too: one that was killed may have left a swap without its result.
    begun = [action for action in case.ctx.ledger.actions(case.incident_id) if action.kind == "swap"]
    swapped = {}
    for action in begun:
        name = action.key.removeprefix("swap:")
        swapped[name] = await _swap(case, int(action.intent["slot"]), name)
    for slot, name in enumerate(case.job_now().machines):
        machine = case.ctx.ledger.machine(name)
        if machine.state is MachineState.ACTIVE and machine.job == case.job:
            continue
        swapped[name] = await _swap(case, slot, name)
        get_run_logger().info("slot %d: %s takes over from %s", slot, swapped[name], name)
    return swapped


async def _swap(case: Case, slot: int, old: str) -> str:
    async def act() -> dict[str, Any]:
        ledger = case.ledger
        machines = list(ledger.job(case.job).machines)
        if machines[slot] != old:
            return {"slot": slot, "from": old, "to": machines[slot]}
        asked_at = case.ctx.clock.now()
        new = await _claim(case, machines, old)
        waited_s = round(case.ctx.clock.now() - asked_at, 3)
        machines[slot] = new.name
        ledger.set_job(case.job, machines=tuple(machines))
        return {"slot": slot, "from": old, "to": new.name, "waited_s": waited_s}

    return str((await case.once("swap", old, {"slot": slot}, act))["to"])


async def _claim(case: Case, taken: list[str], old: str) -> Machine:
    """A standby for the job in the place of ``old``, of its kind.

    First one that an attempt claimed and was killed before it could place it.
    """
    ctx, job, ledger = case.ctx, case.job, case.ledger
    for machine in ledger.machines(state=MachineState.ACTIVE, job=job):
        if machine.name not in taken:
            return machine
    # One that the job let go as innocent stands by with a slot of its own to come back to.
    others = [name for name in taken if name != old]
    try:
        return ledger.claim_standbys(job, 1, [*excluded(ctx, old), *others])[0]
    except NoStandbyError:
        await provision_for_now(ctx, group_of(old, ctx.policy.spare_pool))
    deadline = ctx.clock.now() + ctx.policy.standby.wait_s
    while True:
        try:
            return ledger.claim_standbys(job, 1, [*excluded(ctx, old), *others])[0]
        except NoStandbyError:
            if ctx.clock.now() > deadline:
                raise NoStandbyError(
                    f"no standby for job {job} within {ctx.policy.standby.wait_s:.0f} s: add machines "
                    "(`holdfast pool`), or release a repaired one (`holdfast release MACHINE`)"
                ) from None
        await ctx.clock.sleep(0.1)


def excluded(ctx: Context, old: str) -> list[str]:
    """Standbys that cannot take ``old``'s place: those of another group, and those that flap."""
    policy = ctx.policy.spare_pool
    flapping = flaps.of_the_pool(ctx.ledger, ctx.clock, ctx.policy)
    if not policy.groups:
        return flapping
    group = group_of(old, policy)
    standbys = ctx.ledger.machines(state=MachineState.STANDBY)
    return [*flapping, *(known.name for known in standbys if group_of(known.name, policy) != group)]


async def provision_for_now(ctx: Context, group: str) -> None:
    """Ask for one machine of the group, unless one is on its way."""
    on_the_way = ctx.ledger.machines(state=MachineState.PROVISIONING)
    if not any(group_of(known.name, ctx.policy.spare_pool) == group for known in on_the_way):
        asked = (1, group) if group else (1,)
        ctx.ledger.add_provisioning(await asyncio.to_thread(ctx.driver.provision, *asked))


async def make_ready(ctx: Context, job: Job) -> None:
    """Check the job's code out on all standbys, so that a swap need not wait for it; failures do not matter."""
    await fleet.prepare_code(ctx, job, job.code_version, ctx.ledger.machines(state=MachineState.STANDBY))


@task(task_run_name="replenish the standby pool")
async def replenish(case: Case) -> list[str]:
    """Ask for as many machines as the pool is short of its target; returns their names without waiting.

    The standbys that are there get the job's code.
    """
    await make_ready(case.ctx, case.job_now())

    async def act() -> dict[str, Any]:
        try:
            return {"provisioned": await provision_shortfall(case.ctx)}
        except HoldfastError as error:
            # The job is back: the schedule fills the pool, a recovery does not wait for it.
            get_run_logger().warning("the pool was not replenished: %s", error)
            return {"provisioned": [], "error": str(error)}

    names = list((await case.once("replenish", case.life, {}, act))["provisioned"])
    if names:
        get_run_logger().info("provisioning %s", listed(names))
    return names


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

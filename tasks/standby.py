"""Steps: fill the slots of evicted machines from the standby pool; refill the pool in the background."""

from __future__ import annotations

from typing import Any

from prefect import task
from prefect.logging import get_run_logger

from holdfast.errors import HoldfastError
from holdfast.models.history import AGAIN, machine_of
from holdfast.operations.provision import make_ready, provision_shortfall
from holdfast.operations.swap import place
from holdfast.policies.join_names import join_names
from holdfast.tasks.recovery_context import RecoveryContext
from holdfast.tasks.resize import shrink


async def swap_in(case: RecoveryContext) -> dict[str, str]:
    """Give every slot whose machine is out of service a standby; returns old name to new name. No task without one.

    With too few standbys an elastic job goes on with fewer machines, and grows when there are more; for another job
    the shortfall is provisioned and waited for.

    Raises:
        NoStandbyError: none came within the policy's time.
    """
    begun = case.ctx.ledger.actions(case.incident_id)
    if not any(action.kind in ("swap", "shrink") for action in begun) and all(
        machine.serves(case.job) for machine in case.machines_now()
    ):
        return {}
    return await _swapped_in(case)


@task(task_run_name="swap in standbys for {case.job}")
async def _swapped_in(case: RecoveryContext) -> dict[str, str]:
    # Those of earlier attempts too: one that was killed may have left a swap without its result.
    begun = case.ctx.ledger.actions(case.incident_id, "swap")
    swapped = {}
    for action in begun:
        name = machine_of(action.key)
        swapped[name] = await _swap(case, int(action.intent["slot"]), name, action.key.removeprefix("swap:"))
    await shrink(case)
    for slot, name in enumerate(case.job_now().machines):
        if case.ctx.ledger.machine(name).serves(case.job):
            continue
        # One that this incident replaced before may have come back, and failed again.
        times = sum(machine_of(action.key) == name for action in case.done("swap"))
        swapped[name] = await _swap(case, slot, name, f"{name}{AGAIN}{times + 1}" if times else name)
        get_run_logger().info("slot %d: %s takes over from %s", slot, swapped[name], name)
    return swapped


async def _swap(case: RecoveryContext, slot: int, old: str, target: str) -> str:
    async def act() -> dict[str, Any]:
        return await place(case.ctx, case.ledger, case.job, slot, old)

    return str((await case.once("swap", target, {"slot": slot}, act))["to"])


@task(task_run_name="replenish the standby pool")
async def replenish(case: RecoveryContext) -> list[str]:
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
        get_run_logger().info("provisioning %s", join_names(names))
    return names

"""Steps of the schedule that sizes the standby pool."""

from __future__ import annotations

import asyncio

from prefect import task
from prefect.artifacts import acreate_markdown_artifact
from prefect.logging import get_run_logger
from pydantic import Field

from holdfast.models.base import Frozen
from holdfast.models.machine import MachineState
from holdfast.policies import spare_pool
from holdfast.tasks.context import context
from holdfast.tasks.standby import provision_shortfall

DAY_S = 86_400.0


class Sizing(Frozen):
    """Parameters of the resize flow; what is left empty comes from the policy file (``spare_pool``)."""

    history_days: float | None = Field(None, gt=0, description="How far back failures count.")
    percentile: float | None = Field(None, gt=0, lt=1, description="Share of days that the pool covers.")
    minimum: int | None = Field(None, ge=0, description="Never fewer standbys than this.")
    maximum: int | None = Field(None, ge=0, description="Never more standbys than this.")
    dry_run: bool = Field(False, description="Publish the reasoning, change nothing.")


class Estimate(Frozen):
    """What the history says, and by which rules."""

    history_days: float
    percentile: float
    minimum: int
    maximum: int

    machines: int
    failures: int
    machine_days: float
    daily_rate: float
    """Failures per machine and day."""
    target: int
    standing_by: int


@task(task_run_name="estimate the failure rate")
async def estimate(sizing: Sizing) -> Estimate:
    """Daily failure rate per machine from the ledger, and the pool size that it asks for."""
    ctx = context()
    policy = ctx.policy.spare_pool.model_copy(
        update={k: v for k, v in sizing if k != "dry_run" and v is not None}
    )
    since = ctx.clock.now() - policy.history_days * DAY_S
    failures, days = ctx.ledger.machine_failures(since), ctx.ledger.machine_days(since)
    rate = spare_pool.estimate_rate(failures, days, policy.prior_failures, policy.prior_machine_days)
    active = len(ctx.ledger.machines(state=MachineState.ACTIVE))
    found = Estimate(
        history_days=policy.history_days,
        percentile=policy.percentile,
        minimum=policy.minimum,
        maximum=policy.maximum,
        machines=active,
        failures=failures,
        machine_days=days,
        daily_rate=rate,
        target=spare_pool.size(
            active, rate, percentile=policy.percentile, minimum=policy.minimum, maximum=policy.maximum
        ),
        standing_by=len(ctx.ledger.machines(state=MachineState.STANDBY))
        + len(ctx.ledger.machines(state=MachineState.PROVISIONING)),
    )
    get_run_logger().info("%d failures in %.1f machine-days: target %d", failures, days, found.target)
    return found


@task(task_run_name="resize the pool to {found.target}")
async def resize(found: Estimate) -> str:
    """Set the pool's target; provision the shortfall or retire standbys beyond it. Says what it did."""
    ctx = context()
    ctx.ledger.set_pool(found.target, f"{found.failures} failures in {found.machine_days:.1f} machine-days")
    names = await provision_shortfall(ctx)
    retired = []
    standbys = ctx.ledger.machines(state=MachineState.STANDBY)
    provisioning = ctx.ledger.machines(state=MachineState.PROVISIONING)
    surplus = max(0, len(standbys) + len(provisioning) - found.target)
    for machine in sorted(standbys, key=lambda m: m.registered_at, reverse=True)[:surplus]:
        # DRAINING first, so that no playbook claims it meanwhile.
        ctx.ledger.set_machine(machine.name, state=MachineState.DRAINING)
        await asyncio.to_thread(ctx.driver.retire, machine.name)
        ctx.ledger.remove_machine(machine.name)
        retired.append(machine.name)
    did = f"provisioned {', '.join(names) or 'none'}; retired {', '.join(retired) or 'none'}"
    get_run_logger().info("%s", did)
    return did


@task(task_run_name="publish the reasoning")
async def publish(found: Estimate, did: str) -> None:
    """Write down why the pool has the size that it has."""
    await acreate_markdown_artifact(
        key="standby-pool",
        description=f"target {found.target}",
        markdown=(
            f"# Standby pool: {found.target}\n\n"
            f"{found.failures} machine failures in {found.machine_days:.1f} machine-days over the last "
            f"{found.history_days:g} days: estimated **{found.daily_rate:.5f}** failures per machine and day.\n\n"
            f"With {found.machines} machines in jobs, failures per day follow "
            f"Binomial({found.machines}, {found.daily_rate:.5f}); its {found.percentile:.0%} percentile, held "
            f"within {found.minimum} to {found.maximum}, is **{found.target}** "
            "(method: ByteDance, arXiv 2509.16293).\n\n"
            f"Standing by before: {found.standing_by}. {did}.\n"
        ),
    )

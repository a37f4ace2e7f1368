"""Steps of the schedule that sizes the standby pool."""

from __future__ import annotations

import asyncio

from prefect import task
from prefect.artifacts import acreate_markdown_artifact
from prefect.logging import get_run_logger
from pydantic import Field

from holdfast.errors import SettingsError
from holdfast.models.base import Frozen
from holdfast.models.machine import Machine, MachineState
from holdfast.operations.pool_plans import plans, pooled
from holdfast.operations.provision import give_back, provision_shortfall
from holdfast.policies.config.pool import SparePoolPolicy
from holdfast.policies.join_names import join_names
from holdfast.policies.pool import machine_groups
from holdfast.policies.pool.spare_pool import PoolPlan
from holdfast.tasks import pool_report
from holdfast.tasks.context import context

_LIMITS = frozenset({"minimum", "maximum"})


class Sizing(Frozen):
    """Parameters of the resize flow; empty ones come from the policy file (``spare_pool``)."""

    history_days: float | None = Field(None, gt=0, description="How far back failures count.")
    percentile: float | None = Field(
        None, gt=0, lt=1, description="Share of replenish times that the pool covers."
    )
    replenish_h: float | None = Field(None, gt=0, description="Hours until a used standby is replaced.")
    minimum: int | None = Field(None, ge=0, description="Never fewer standbys than this, in each group.")
    maximum: int | None = Field(None, ge=0, description="Never more standbys than this, in each group.")
    dry_run: bool = Field(False, description="Publish the reasoning, change nothing.")


class Estimate(Frozen):
    """The plan for each group from its history, and the rules used."""

    history_days: float
    plans: tuple[PoolPlan, ...]
    standing_by: int

    @property
    def target(self) -> int:
        """Size of all groups together."""
        return sum(plan.target for plan in self.plans)


@task(task_run_name="estimate the failure rate")
async def estimate(sizing: Sizing) -> Estimate:
    """Estimate the daily failure rate per machine from the ledger, and the pool size that it asks for."""
    ctx = context()
    policy = _with(sizing, ctx.policy.spare_pool)
    found = Estimate(
        history_days=policy.history_days,
        plans=await asyncio.to_thread(plans, ctx.ledger, policy, ctx.clock.now()),
        standing_by=len(pooled(ctx.ledger)),
    )
    for plan in found.plans:
        get_run_logger().info("%starget %d: %s", _named(plan.group), plan.target, "; ".join(plan.reasons))
    return found


@task(task_run_name="resize the pool to {found.target}")
async def resize(found: Estimate) -> str:
    """Set the pool's target; provision the shortfall or retire standbys beyond it. Return what was done."""
    ctx, log = context(), get_run_logger()
    ctx.ledger.set_pool(
        found.target,
        "; ".join(f"{_named(plan.group)}{plan.reasons[0]}" for plan in found.plans),
        {plan.group: plan.target for plan in found.plans} if ctx.policy.spare_pool.groups else {},
    )
    unfinished = [known for known in ctx.ledger.machines(state=MachineState.DRAINING) if _leaves_pool(known)]
    retired = [machine.name for machine in unfinished if await give_back(ctx, machine, log)]
    names = await provision_shortfall(ctx)
    for plan in found.plans:
        standbys = [
            known
            for known in ctx.ledger.machines(state=MachineState.STANDBY)
            if machine_groups.group_of(known.name, ctx.policy.spare_pool) == plan.group
        ]
        # Those on their way do not count: they may never come, and a recovery needs what stands by now.
        surplus = max(0, len(standbys) - plan.target)
        newest = sorted(standbys, key=lambda m: m.registered_at, reverse=True)[:surplus]
        # Withdrawn first, so that no playbook claims it meanwhile; one that was claimed already stays.
        withdrawn = [known for known in newest if ctx.ledger.withdraw(known.name)]
        retired += [known.name for known in withdrawn if await give_back(ctx, known, log)]
    did = f"provisioned {join_names(names)}; retired {join_names(retired)}"
    log.info("%s", did)
    return did


@task(task_run_name="publish the reasoning")
async def publish(found: Estimate, did: str) -> None:
    """Publish why the pool has the size that it has, with a plot of each group."""
    await acreate_markdown_artifact(
        key="standby-pool",
        description=f"target {found.target}",
        markdown=await asyncio.to_thread(
            pool_report.markdown,
            found.plans,
            found.history_days,
            f"Standing by before: {found.standing_by}. {did}.",
        ),
    )


def _with(sizing: Sizing, policy: SparePoolPolicy) -> SparePoolPolicy:
    """Return the policy with the parameters in place of its own figures, also of those of single groups.

    Raises:
        SettingsError: what comes of it, for the pool or a group, has a minimum above its maximum.
    """
    given = {k: v for k, v in sizing if k != "dry_run" and v is not None}
    changed = policy.model_copy(update=given)
    _check_limits("", changed.minimum, changed.maximum)
    for name, rules in policy.groups.items():
        wanted = rules.model_copy(update={key: value for key, value in given.items() if key in _LIMITS})
        _check_limits(name, wanted.minimum, wanted.maximum)
    own = {
        name: rules.model_copy(update=dict.fromkeys(given.keys() & _LIMITS))
        for name, rules in policy.groups.items()
    }
    return changed.model_copy(update={"groups": own})


def _check_limits(group: str, minimum: int | None, maximum: int | None) -> None:
    if minimum is not None and maximum is not None and maximum < minimum:
        of = f" of group {group!r}" if group else ""
        raise SettingsError(
            f"standby pool{of}: minimum = {minimum}, maximum = {maximum}; expected minimum <= maximum. "
            "Give both as parameters, or change spare_pool in the policy file."
        )


def _leaves_pool(machine: Machine) -> bool:
    """Return whether it was being retired: an eviction has a reason, and a job until it is out."""
    return machine.job is None and machine.cordon_reason is None


def _named(group: str) -> str:
    return f"{group}: " if group else ""

"""Step: take machines out of service, within the limits, and see that they are out."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from prefect import task
from prefect.logging import get_run_logger
from prefect.runtime import task_run

from holdfast.errors import LimitError, RecoveryError
from holdfast.models.machine import MachineState, Scope
from holdfast.policies import breaker
from holdfast.tasks.case import Case
from holdfast.tasks.context import Context
from holdfast.tasks.pause import fence


def _run_name() -> str:
    return f"evict {', '.join(dict.fromkeys(task_run.parameters['machines'])) or 'nobody'}"


@task(task_run_name=_run_name)
async def evict(case: Case, machines: Sequence[str], reason: str, scope: Scope = Scope.CLUSTER) -> None:
    """Evict ``machines`` (fence, drain, verify gone, cordon); those that are out already are left alone.

    Raises:
        LimitError: the breaker forbids it; nothing was evicted, a human decides.
        RecoveryError: a machine still lives after its eviction.
    """
    job = case.job_now()
    out = {action.key.removeprefix("evict:") for action in case.done("evict")}
    wanted = [name for name in dict.fromkeys(machines) if name in job.machines or name in out]
    new = [name for name in wanted if name not in out]
    _ask_breaker(case, new)
    for name in new:
        get_run_logger().warning("evicting %s: %s", name, reason)
    await asyncio.gather(*(_evict_one(case, name, reason, scope) for name in new))


async def take_out(ctx: Context, machine: str, reason: str, scope: Scope) -> None:
    """Drain, evict and cordon one machine; returns when the engine says that it is out.

    Raises:
        RecoveryError: it still lives.
    """
    ctx.ledger.set_machine(machine, state=MachineState.DRAINING, cordon_scope=scope, cordon_reason=reason)
    await asyncio.to_thread(ctx.driver.evict, machine, scope, reason)
    if any(seen.alive for seen in await asyncio.to_thread(ctx.driver.machines) if seen.name == machine):
        raise RecoveryError(f"machine {machine} still lives after its eviction")
    ctx.ledger.set_machine(machine, state=MachineState.CORDONED, job=None)


async def _evict_one(case: Case, machine: str, reason: str, scope: Scope) -> None:
    async def act() -> dict[str, Any]:
        ctx = case.ctx
        # The agent may be gone; the driver makes sure that nothing of the machine runs.
        await fence(ctx, [ctx.ledger.machine(machine)], case.job, case.broken_epoch)
        await take_out(ctx, machine, f"{case.incident_id}: {reason}", scope)
        return {"reason": reason, "scope": scope.value, "at": ctx.clock.now()}

    await case.once("evict", machine, {"reason": reason, "scope": scope.value}, act)


def _ask_breaker(case: Case, new: Sequence[str]) -> None:
    if not new:
        return
    ledger, now = case.ctx.ledger, case.ctx.clock.now()
    fleet_size = sum(machine.state is not MachineState.GONE for machine in ledger.machines())
    policy = case.ctx.policy.breaker
    recent = ledger.evictions(since=now - policy.window_s)
    answer = breaker.may_evict(recent, len(new), fleet_size, now, policy)
    if not answer.allowed:
        raise LimitError(f"not evicting {', '.join(new)}: {answer.reason}")

"""Step: wait until what all machines share works again: storage, mounts, services."""

from __future__ import annotations

import asyncio
from typing import Any

from prefect import task
from prefect.logging import get_run_logger

from holdfast.models.agent import Check, Diagnose
from holdfast.models.alert import Finding
from holdfast.operations import fleet
from holdfast.policies.classify import services
from holdfast.tasks.recovery_context import RecoveryContext

_AGAIN_S = 1.0


@task(task_run_name="wait for what all machines share")
async def await_healthy(case: RecoveryContext) -> str:
    """Look at all machines until no shared fault is left; returns what was waited for, empty if nothing.

    A fault of single machines is not waited for: the diagnosis finds it.

    Raises:
        LimitError: it did not come back within the policy's time; a human decides.
    """

    async def act() -> dict[str, Any]:
        ctx, started = case.ctx, case.ctx.clock.now()
        deadline, waited_for = started + ctx.policy.diagnose.service_wait_s, ""
        while True:
            shared = services.shared_fault(await _look(case), len(case.job_now().machines))
            if not shared:
                break
            waited_for = shared
            services.must_be_in_time(shared, ctx.clock.now(), deadline)
            await asyncio.sleep(_AGAIN_S)
        took = ctx.clock.now() - started
        return {"waited_for": waited_for, "seconds": round(took, 3)}

    done = await case.once("await", case.life, {}, act)
    if not done["waited_for"]:
        return ""
    summary = f"waited {done['seconds']:.0f} s for {done['waited_for']}; "
    get_run_logger().info("%s", summary)
    return summary


async def _look(case: RecoveryContext) -> list[Finding]:
    answers = await fleet.ask(
        case.ctx,
        case.machines_now(),
        lambda agent, machine: agent.diagnose(
            Diagnose(
                job=f"{case.job}~inspect",
                epoch=case.broken_epoch,
                incarnation=machine.incarnation,
                check=Check.INSPECT,
                timeout_s=case.ctx.policy.diagnose.check_timeout_s,
            )
        ),
    )
    return [finding for findings in fleet.answered(answers).values() for finding in findings]

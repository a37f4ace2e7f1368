"""Step: mark checkpoints that may carry bad values; they are kept, and never restored."""

from __future__ import annotations

import asyncio
from typing import Any

from prefect import task
from prefect.logging import get_run_logger

from holdfast.errors import HoldfastError
from holdfast.storage.checkpoints.remote import manifests
from holdfast.tasks.recovery_context import RecoveryContext


@task(task_run_name="mark checkpoints after step {case.last_good_step}")
async def mark_suspect(case: RecoveryContext, reason: str) -> list[int]:
    """Mark every checkpoint in S3 from after the last good step; returns their steps."""
    bound = case.last_good_step
    if bound is None:
        return []

    async def act() -> dict[str, Any]:
        marked = case.ledger.mark_suspect(case.job, bound + 1, f"{case.incident_id}: {reason}")
        for checkpoint in marked:
            try:
                await asyncio.to_thread(manifests.mark_suspect, case.ctx.store, checkpoint, reason)
            except HoldfastError as error:
                # The ledger's mark already keeps it from being restored; S3 is never on the critical path.
                get_run_logger().warning("could not mark %s in S3: %s", checkpoint.key, error)
        return {"steps": [checkpoint.step for checkpoint in marked]}

    done = await case.once("suspect", f"after-{bound}", {"bound": bound, "reason": reason}, act)
    return list(done["steps"])

"""A job is stopped for good, whatever became of its machines."""

from __future__ import annotations

from pathlib import Path

from holdfast.models.job import JobState
from holdfast.operations import stop
from tests.tasks.two_machines import JOB, running_job


async def test_a_job_is_stopped_whose_machines_are_not_there_any_more(tmp_path: Path) -> None:
    """The site was stopped and has other machines since."""
    ctx = running_job(tmp_path)
    for name in ("m0", "m1"):
        ctx.ledger.remove_machine(name)
    await stop.stop(ctx, JOB)
    assert ctx.ledger.job(JOB).state is JobState.STOPPED

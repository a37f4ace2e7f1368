"""`POST /v1/jobs/NAME/resume`: a person starts a job that stands."""

from __future__ import annotations

from holdfast.errors import UnavailableError
from holdfast.models.job import JobState
from holdfast.testing.gateway_kit import JOB, Kit


async def test_a_dead_machine_is_named_with_the_way_out(kit: Kit) -> None:
    """Its address alone tells a person neither which machine it is nor what to do."""
    await kit.running_job()
    kit.ledger.set_job(JOB, state=JobState.FAILED)
    address = kit.ledger.machine("m1").address

    async def refuses() -> None:
        error = UnavailableError("the agent refused the connection")
        error.address = address
        raise error

    kit.acts.during_launch = refuses
    answer = await kit.post(f"/v1/jobs/{JOB}/resume", status=503)
    assert f"machine m1 of job {JOB} does not answer" in str(answer)
    assert "`holdfast evict m1 --reason WHY`" in str(answer)

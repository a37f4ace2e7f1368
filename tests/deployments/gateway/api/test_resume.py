"""`POST /v1/jobs/NAME/resume`: a person starts a job that stands."""

from __future__ import annotations

from holdfast.errors import UnavailableError
from holdfast.models.job import JobState
from holdfast.models.missing import Missing
from holdfast.models.wait import Wait
from holdfast.policies.escalate import waits
from holdfast.testing.gateway_kit import JOB, Kit


async def test_a_dead_machine_is_named_with_the_way_out(kit: Kit) -> None:
    """Its address alone shows a person neither the machine nor the remedy."""
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


async def test_what_a_resume_ended_is_no_longer_in_the_summary(kit: Kit) -> None:
    """Until then the incident states that the job stands still, and why."""
    await kit.running_job()
    await kit.crash()
    (incident,) = kit.incidents()
    now = kit.clock.now()
    known = {"incident_id": incident.id, "job": JOB, "missing": Missing.CHANGE, "why": "spent", "since": now}
    wait = Wait.model_validate(known | {"next_at": now + 60})
    seen = waits.outlook(wait, None, kit.gateway.site.policy.again)
    kit.ledger.put_wait(seen.wait)
    kit.ledger.give_up(incident.id, f"rank 0 was killed: all rungs are used up. {seen.message}")
    assert "stands still" in kit.incidents()[0].summary
    await kit.post(f"/v1/jobs/{JOB}/resume")
    epoch = kit.ledger.job(JOB).epoch
    assert kit.incidents()[0].summary == (
        f"rank 0 was killed: all rungs are used up. A person resumed the job since: epoch {epoch} was started"
    )
    assert kit.ledger.waits() == []

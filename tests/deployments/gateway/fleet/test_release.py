"""Machines of ended jobs: freed when the last step is in S3, or when that takes too long."""

from __future__ import annotations

import pytest

from holdfast.deployments.gateway.fleet.release import AFTER_S, AFTER_STOP_S, UPLOAD_S
from holdfast.errors import UnavailableError
from holdfast.models.job import JobState
from holdfast.models.machine import MachineState
from holdfast.testing.gateway_kit import JOB, Kit


async def ended(kit: Kit, state: JobState) -> None:
    await kit.running_job(machines=2)
    kit.ledger.set_job(JOB, state=state, done_at=kit.clock.now())


async def look(kit: Kit, seconds: float) -> list[str]:
    """The acts of a look so much later."""
    kit.clock.advance(seconds)
    kit.acts.calls.clear()
    await kit.gateway.site.refresh()
    await kit.gateway.releases.tick()
    return [call[0] for call in kit.acts.calls]


def held(kit: Kit) -> int:
    return len(kit.ledger.machines(MachineState.ACTIVE, JOB))


async def test_machines_of_a_done_job_are_freed_after_its_last_upload(kit: Kit) -> None:
    await ended(kit, JobState.DONE)
    kit.acts.left_to_upload = 3
    assert await look(kit, 0.0) == ["persist_last"]
    assert await look(kit, AFTER_S) == ["persist_last"], "its memory is all that there is of the last step"
    assert held(kit) == 2
    assert await look(kit, 2.0) == ["persist_last", "free"]
    assert held(kit) == 0
    assert await look(kit, 2.0) == []


async def test_what_is_in_s3_is_not_asked_for_again(kit: Kit) -> None:
    """A thousand machines answer that question."""
    await ended(kit, JobState.DONE)
    assert await look(kit, 0.0) == ["persist_last"]
    assert await look(kit, AFTER_S / 2) == []
    assert await look(kit, AFTER_S / 2) == ["free"]


async def test_an_s3_that_stays_away_keeps_no_machines(kit: Kit) -> None:
    await ended(kit, JobState.DONE)
    kit.acts.left_to_upload = 1000
    assert "free" not in await look(kit, UPLOAD_S)
    assert "free" in await look(kit, AFTER_S)


@pytest.mark.parametrize("state", [JobState.FAILED, JobState.RUNNING])
async def test_machines_of_other_jobs_stay(kit: Kit, state: JobState) -> None:
    await ended(kit, state)
    assert await look(kit, 1000.0) == []


async def test_a_stopped_job_is_left_to_its_caller_at_first(kit: Kit) -> None:
    await ended(kit, JobState.STOPPED)
    assert await look(kit, AFTER_S) == []
    assert await look(kit, AFTER_STOP_S) == ["persist_last", "free"]


async def test_machines_of_a_stopped_job_that_a_person_starts_are_not_freed(kit: Kit) -> None:
    """It was stopped long ago, and is so until its ranks run: a start may take minutes."""
    await ended(kit, JobState.STOPPED)
    assert "free" in await look(kit, AFTER_STOP_S)

    async def long() -> None:
        assert await look(kit, AFTER_STOP_S + UPLOAD_S) == []

    kit.acts.during_launch = long
    await kit.post(f"/v1/jobs/{JOB}/resume")
    assert held(kit) == 2
    assert kit.ledger.job(JOB).done_at is None


async def test_seats_of_a_stopped_job_whose_start_failed_are_freed_a_while_later(kit: Kit) -> None:
    await ended(kit, JobState.STOPPED)
    assert "free" in await look(kit, AFTER_STOP_S)
    kit.acts.launch_error = UnavailableError("no answer from m0")
    await kit.post(f"/v1/jobs/{JOB}/resume", status=503)
    assert held(kit) == 2
    assert "free" not in await look(kit, AFTER_STOP_S - 1.0)
    assert "free" in await look(kit, 1.0)

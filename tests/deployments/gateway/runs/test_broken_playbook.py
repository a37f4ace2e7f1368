"""A playbook of another package that raises in every attempt: its bug costs no job that could train."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from holdfast.deployments.gateway.runs.flow_runs import RunPhase
from holdfast.errors import RefusedError
from holdfast.models.alert import IncidentState
from holdfast.models.job import JobState
from holdfast.policies.config.policy import Policy
from holdfast.testing.gateway_kit import JOB, Kit

INCIDENT = f"{JOB}-1"
OWN = """
ladder: {classes: {fan_fault: {tiers: [], rungs: [], end: human, scope: cluster}}}
playbooks:
  fan_fault:
    when: [{kind: host_fault, evidence: {check: fan}}]
    values: {}
"""


@pytest.fixture
async def own(tmp_path: Path) -> AsyncIterator[Kit]:
    """A gateway of a site with a playbook of its own, whose job is running."""
    site = tmp_path / "site.yaml"
    site.write_text(OWN)
    kit = Kit(tmp_path, Policy.load(site))
    await kit.running_job()
    yield kit
    await kit.close()


async def test_a_job_that_its_playbook_left_alone_trains_on(own: Kit) -> None:
    """It only notifies, say, and raises: nothing is wrong with the job."""
    await fan_alert(own)
    await fail_all_attempts(own)
    (incident,) = own.incidents()
    assert incident.state is IncidentState.NEEDS_HUMAN
    assert "the job runs on meanwhile" in incident.summary
    assert own.ledger.job(JOB).state is JobState.RUNNING
    assert not {"halt", "launch"} & {name for name, *_ in own.acts.calls}


async def test_the_summary_has_the_error_and_what_is_to_be_fixed(own: Kit) -> None:
    """Shipping other code of the job would change nothing."""
    await fan_alert(own)
    await fail_all_attempts(own, "KeyError: 'rpm'")
    (incident,) = own.incidents()
    assert "KeyError: 'rpm'" in incident.summary
    assert "Fix the playbook fan_fault in its package" in incident.summary


async def test_a_job_that_its_playbook_had_stopped_is_started_again(own: Kit) -> None:
    """It trained until the playbook stopped it, and then raised: nothing else would start it."""
    await fan_alert(own)
    stop(own)
    await fail_all_attempts(own)
    (incident,) = own.incidents()
    assert incident.state is IncidentState.NEEDS_HUMAN
    assert "the job was started on the machines that it has" in incident.summary
    assert own.ledger.job(JOB).state is JobState.RUNNING
    assert [call[:2] for call in own.acts.calls if call[0] in ("halt", "launch")][-1] == ("launch", JOB)
    (wait,) = own.ledger.waits()
    assert wait.runs_on


async def test_a_job_that_cannot_be_started_waits(own: Kit) -> None:
    """The control: it is stopped in order, and tried again later."""
    await fan_alert(own)
    stop(own)
    own.acts.launch_error = RefusedError("machines m0 are out of service")
    await fail_all_attempts(own)
    assert own.ledger.job(JOB).state is JobState.FAILED
    assert ("halt", JOB) in own.acts.calls


async def test_a_job_that_fell_by_itself_is_started_after_a_wait(own: Kit) -> None:
    """A rank of it ended: at first a person has time to look; it does not stand for ever."""
    await fan_alert(own)
    await own.crash()
    stop(own)
    await fail_all_attempts(own)
    assert own.ledger.job(JOB).state is JobState.FAILED
    own.acts.calls.clear()
    await own.look_again(own.gateway.site.policy.again.pause_s + 1)
    await fail_all_attempts(own)
    assert own.ledger.job(JOB).state is JobState.RUNNING
    assert [call[0] for call in own.acts.calls] == ["launch"]


async def test_a_playbook_that_sleeps_is_given_up_after_two_runs(own: Kit) -> None:
    """Each has the job stand for five minutes: six of them were half an hour."""
    await fan_alert(own)
    stop(own)
    own.ledger.finish(INCIDENT, "pause:e1", {})
    own.ledger.set_incident(INCIDENT, first_task_at=own.clock.now())
    own.runs.set(f"{INCIDENT}#1", RunPhase.RUNNING, alive=True)
    await own.tick(301)
    own.ledger.begin(INCIDENT, 2, "attempt:2", "attempt", {})
    own.ledger.finish(INCIDENT, "attempt:2", {})
    own.runs.set(f"{INCIDENT}#2", RunPhase.RUNNING, alive=True)
    await own.tick(301)
    (incident,) = own.incidents()
    assert incident.state is IncidentState.NEEDS_HUMAN
    assert "silent for 301 s" in incident.summary
    assert own.ledger.job(JOB).state is JobState.RUNNING


async def fan_alert(kit: Kit) -> None:
    """The site's own monitor reports a fan."""
    answer = await kit.alert(kind="host_fault", machine="m0", incarnation="i1", evidence={"check": "fan"})
    assert answer["outcome"] == "opened"
    assert [each.incident_class for each in kit.incidents()] == ["fan_fault"]
    kit.ledger.set_job(JOB, state=JobState.RECOVERING)


def stop(kit: Kit) -> None:
    """The playbook stopped the job."""
    kit.ledger.set_job(JOB, state=JobState.RECOVERING)
    kit.ledger.begin(INCIDENT, 1, "pause:e1", "pause", {})


async def fail_all_attempts(kit: Kit, message: str = "") -> None:
    """Have every attempt begin and raise, until there is none any more."""
    for _ in range(20):
        (incident,) = kit.incidents()
        if incident.state is not IncidentState.OPEN:
            return
        if incident.first_task_at is None:
            kit.ledger.set_incident(INCIDENT, first_task_at=kit.clock.now())
        key = f"{INCIDENT}#{incident.attempt}"
        if key in kit.runs.runs:
            if incident.attempt > 1:
                attempt = f"attempt:{incident.attempt}"
                kit.ledger.begin(INCIDENT, incident.attempt, attempt, "attempt", {})
                kit.ledger.finish(INCIDENT, attempt, {})
            kit.runs.set(key, RunPhase.FAILED, message=message)
        await kit.tick(10)
    raise AssertionError(f"still open after {len(kit.runs.created)} runs")

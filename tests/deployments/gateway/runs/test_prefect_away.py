"""Prefect does not answer, or has lost the deployment of a playbook."""

import pytest

from holdfast.testing.gateway_kit import JOB, Kit

FIRST = f"{JOB}-1#1"


async def test_prefect_that_is_away_is_asked_again(kit: Kit) -> None:
    """The incident is in the ledger; the run is made when Prefect is back."""
    await kit.running_job()
    kit.runs.away, kit.runs.back_after = True, 3
    await kit.crash()
    assert kit.runs.created == [FIRST]
    assert kit.runs.calls == 4
    assert not kit.runs.offline_started


async def test_playbook_runs_without_prefect_when_it_stays_away(kit: Kit) -> None:
    """Recovery goes on, as a new attempt: a request that timed out may yet have made a run."""
    await kit.running_job()
    kit.runs.away = True
    await kit.crash()
    assert kit.runs.offline_started == [(f"{JOB}-1", 2)]
    (incident,) = kit.incidents()
    assert incident.flow_run_id == f"offline:{JOB}-1:2"
    await kit.tick(30)
    assert len(kit.runs.offline_started) == 1


async def test_a_deleted_deployment_is_reported_to_a_person_and_its_incident_runs_without_prefect(
    kit: Kit, caplog: pytest.LogCaptureFixture
) -> None:
    """The log once, the status and the incident: Prefect answers, but would run nothing."""
    await kit.running_job()
    kit.runs.lacks = ("job-crash",)
    with caplog.at_level("INFO"):
        await kit.gateway.dispatcher.ping()
        assert "has no deployment" not in caplog.text, "`holdfast up` may be registering them"
        kit.clock.advance(31.0)
        await kit.gateway.dispatcher.ping()
        await kit.gateway.dispatcher.ping()
    assert caplog.text.count("has no deployment of job-crash") == 1
    assert (await kit.get("/v1/status"))["prefect"]["lacks"] == ["job-crash"]
    assert kit.metric("prefect_deployments_missing") == 1
    await kit.crash()
    assert kit.runs.offline_started == [(f"{JOB}-1", 2)]
    (incident,) = kit.incidents()
    assert "runs without Prefect: Prefect has no deployment job-crash/job-crash" in incident.reasons[-1]
    assert kit.gateway.dispatcher.prefect_away_since is None
    kit.runs.lacks = ()
    await kit.gateway.dispatcher.ping()
    assert (await kit.get("/v1/status"))["prefect"]["lacks"] == []
    assert kit.metric("prefect_deployments_missing") == 0


async def test_a_deployment_that_is_only_being_made_is_waited_for(kit: Kit) -> None:
    """The control: `prefect deploy --all` is at work."""
    await kit.running_job()
    kit.runs.lacks, kit.runs.back_after = ("job-crash",), 2
    await kit.crash()
    assert (kit.runs.created, kit.runs.offline_started) == ([FIRST], [])


async def test_run_survives_a_short_absence_of_prefect(kit: Kit) -> None:
    """A playbook outlives 10 to 20 s without the API: as long as it acts it is left alone."""
    await kit.running_job()
    await kit.crash()
    kit.runs.away = True
    await kit.tick(5)
    await kit.tick(12)
    assert not kit.runs.offline_started
    kit.ledger.begin(f"{JOB}-1", 1, "pause:e1", "pause", {})
    await kit.tick(10)
    assert not kit.runs.offline_started
    await kit.tick(15)
    assert kit.runs.offline_started

"""Suspended runs whose answer decides nothing any more."""

from __future__ import annotations

import pytest

from holdfast.deployments.gateway.runs.flow_runs import RunPhase, Suspended
from holdfast.models.alert import IncidentState
from holdfast.testing.gateway_kit import JOB, Kit

FIRST, SECOND = f"{JOB}-1#1", f"{JOB}-1#2"


async def _asks(kit: Kit) -> None:
    """A playbook that waits for a person."""
    await kit.running_job()
    await kit.crash()
    kit.runs.set(FIRST, RunPhase.SUSPENDED)


async def test_a_question_that_is_open_is_left_alone(kit: Kit) -> None:
    await _asks(kit)
    await kit.gateway.leftovers.tick()
    assert kit.runs.cancelled == {}


@pytest.mark.parametrize("state", [each for each in IncidentState if each is not IncidentState.OPEN])
async def test_the_run_of_an_incident_that_is_over_is_cancelled_once(kit: Kit, state: IncidentState) -> None:
    """Handed over, stopped by a person, or ended in any other way; also where another gateway ended it."""
    await _asks(kit)
    kit.ledger.set_incident(f"{JOB}-1", state=state)
    await kit.restart()
    await kit.gateway.leftovers.tick()
    await kit.gateway.leftovers.tick()
    assert list(kit.runs.cancelled) == [FIRST]
    assert f"{JOB}-1 is over ({state})" in kit.runs.cancelled[FIRST]


async def test_the_run_of_an_attempt_that_another_one_followed_is_cancelled(kit: Kit) -> None:
    """Prefect was away, and the incident went on without it: the suspended run asks in vain."""
    await _asks(kit)
    kit.ledger.next_attempt(f"{JOB}-1", 1)
    kit.ledger.set_incident(f"{JOB}-1", flow_run_id=SECOND)
    kit.runs.set(SECOND, RunPhase.RUNNING)
    await kit.gateway.leftovers.tick()
    assert list(kit.runs.cancelled) == [FIRST]
    assert kit.runs.runs[SECOND].phase is RunPhase.RUNNING


async def test_a_run_that_goes_on_before_it_is_cancelled_is_not_reported_as_cancelled(
    kit: Kit, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A person's answer came between the look at it and its end."""
    await _asks(kit)
    kit.ledger.set_incident(f"{JOB}-1", state=IncidentState.DISMISSED)
    seen = await kit.runs.suspended()
    kit.runs.set(FIRST, RunPhase.RUNNING)

    async def suspended() -> list[Suspended]:
        return seen

    monkeypatch.setattr(kit.runs, "suspended", suspended)
    with caplog.at_level("INFO"):
        await kit.gateway.leftovers.tick()
    assert kit.runs.cancelled == {}
    assert "cancelled" not in caplog.text
    kit.runs.set(FIRST, RunPhase.SUSPENDED)
    with caplog.at_level("INFO"):
        await kit.gateway.leftovers.tick()
    assert f"flow run {FIRST} is cancelled" in caplog.text


async def test_while_prefect_is_away_nothing_is_forgotten(kit: Kit) -> None:
    await _asks(kit)
    kit.ledger.set_incident(f"{JOB}-1", state=IncidentState.DISMISSED)
    kit.runs.away = True
    await kit.gateway.leftovers.tick()
    kit.runs.away = False
    await kit.gateway.leftovers.tick()
    assert list(kit.runs.cancelled) == [FIRST]


async def test_a_run_that_a_person_started_is_found_by_its_job(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was started for a job, and opened the incident by itself; that of another site is left alone."""
    await _asks(kit)
    kit.ledger.set_incident(f"{JOB}-1", state=IncidentState.DISMISSED)

    async def suspended() -> list[Suspended]:
        return [
            Suspended(id=FIRST, job=JOB),
            Suspended(id="r2", job="of-another-site"),
            Suspended(id="r3", incident="of-another-site-7"),
            Suspended(id="r4"),
        ]

    monkeypatch.setattr(kit.runs, "suspended", suspended)
    await kit.gateway.leftovers.tick()
    assert list(kit.runs.cancelled) == [FIRST]

"""Incidents that wait, and their return to work: in one transaction, or not at all."""

from __future__ import annotations

import pytest

from holdfast.clock import FakeClock
from holdfast.errors import StaleError
from holdfast.models.alert import Alert, AlertKind, Incident, IncidentState
from holdfast.models.job import JobState
from holdfast.models.missing import Missing
from holdfast.models.wait import Wait
from holdfast.storage.ledger import Ledger
from tests.storage.ledger.samples import incident, running_job, spec


def waiting(ledger: Ledger, clock: FakeClock) -> Incident:
    """An incident that was given up, with its next attempt."""
    running_job(ledger)
    clock.advance(10)
    opened = incident(ledger)
    ledger.put_wait(
        Wait(
            incident_id=opened.id,
            job="gpt",
            missing=Missing.STANDBY,
            why="the pool is empty",
            since=clock.now(),
            next_at=clock.now() + 60,
        )
    )
    return opened


def test_a_wait_counts_once_its_incident_is_closed(ledger: Ledger, clock: FakeClock) -> None:
    """It is written before: a playbook that is killed in between leaves an open incident, which is started again."""
    opened = waiting(ledger, clock)
    assert ledger.waits() == []
    ledger.give_up(opened.id, "no standby")
    (wait,) = ledger.waits()
    assert (wait.incident_id, wait.missing, wait.times) == (opened.id, Missing.STANDBY, 1)
    ledger.end_wait(opened.id)
    assert ledger.waits() == []
    assert ledger.last_wait(opened.id) == wait


def test_an_incident_is_taken_up_again_once(ledger: Ledger, clock: FakeClock) -> None:
    """Open in its next attempt, the job recovering; the reason is an action of it."""
    opened = waiting(ledger, clock)
    ledger.give_up(opened.id, "no standby")
    again = ledger.take_up(opened.id, "m9 registered")
    assert (again.state, again.attempt, again.closed_at, again.flow_run_id) == (
        IncidentState.OPEN,
        2,
        None,
        None,
    )
    assert ledger.job("gpt").state is JobState.RECOVERING
    (action,) = ledger.actions(opened.id)
    assert (action.key, action.result) == ("again:1", {"why": "m9 registered"})
    with pytest.raises(StaleError):
        ledger.take_up(opened.id, "twice")


@pytest.mark.parametrize("how", ["resumed", "stopped", "submitted again", "another incident"])
def test_what_a_person_took_over_is_not_taken_up(ledger: Ledger, clock: FakeClock, how: str) -> None:
    """Nothing is changed then."""
    opened = waiting(ledger, clock)
    ledger.give_up(opened.id, "no standby")
    clock.advance(10)
    if how == "resumed":
        ledger.set_job("gpt", state=JobState.RUNNING)
    elif how == "stopped":
        ledger.set_job("gpt", state=JobState.STOPPED)
    elif how == "submitted again":
        ledger.add_job(spec(), "v2")
        ledger.set_job("gpt", state=JobState.FAILED)
    else:
        incident(ledger)
    state = ledger.job("gpt").state
    with pytest.raises(StaleError):
        ledger.take_up(opened.id, "too late")
    assert ledger.incident(opened.id).state is IncidentState.NEEDS_HUMAN
    assert ledger.job("gpt").state is state


def test_what_is_reported_during_a_wait_joins_its_incident(ledger: Ledger, clock: FakeClock) -> None:
    """Once, and only while it waits."""
    opened = waiting(ledger, clock)
    sign = Alert(kind=AlertKind.GPU_LOST, job="gpt", machine="m1", at=clock.now())
    with pytest.raises(StaleError):
        ledger.join_waiting(opened.id, [sign])  # open: it joins as any other
    ledger.give_up(opened.id, "no standby")
    before = len(ledger.incident(opened.id).alerts)
    ledger.join_waiting(opened.id, [sign])
    ledger.join_waiting(opened.id, [sign])
    assert len(ledger.incident(opened.id).alerts) == before + 1
    ledger.end_wait(opened.id)
    with pytest.raises(StaleError):
        ledger.join_waiting(opened.id, [sign])

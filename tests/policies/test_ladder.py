"""The ladder: retry, rollback, replay, a human."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.models.alert import IncidentClass, Rung
from holdfast.policies.ladder import PastIncident, next_rung
from holdfast.policies.policy import Policy

LADDER = Policy.load().ladder
CRASH = IncidentClass.JOB_CRASH


def past(*rungs: Rung, progress: int = 0, kind: IncidentClass = CRASH) -> PastIncident:
    return PastIncident(incident_class=kind, epoch=1, at=0.0, rungs=rungs, progressed_steps=progress)


def rung(history: list[PastIncident], done: tuple[Rung, ...] = (), can_rollback: bool = True) -> Rung:
    return next_rung(history, done, LADDER, can_rollback).rung


def test_the_ladder_is_climbed_within_one_incident() -> None:
    """Each rung once, in order."""
    climbed: list[Rung] = []
    while not climbed or climbed[-1] is not Rung.HUMAN:
        climbed.append(rung([], tuple(climbed)))
    assert climbed == [Rung.RETRY, Rung.ROLLBACK, Rung.REPLAY, Rung.HUMAN]


def test_the_ladder_is_climbed_across_incidents_without_progress() -> None:
    """A crash again at the same step is no new story."""
    history: list[PastIncident] = []
    for expected in (Rung.RETRY, Rung.ROLLBACK, Rung.REPLAY, Rung.HUMAN):
        assert rung(history) is expected
        history.append(past(expected, progress=LADDER.progress_steps - 1))


def test_progress_refills_the_budgets() -> None:
    """Restarts are not counted, attempts without progress are."""
    assert rung([past(Rung.RETRY, Rung.ROLLBACK, Rung.REPLAY, progress=LADDER.progress_steps)]) is Rung.RETRY
    assert rung([past(Rung.RETRY, progress=0), past(Rung.RETRY, progress=100)] * 20) is Rung.RETRY


def test_only_incidents_after_the_last_progress_count() -> None:
    """Old failures are paid for by the progress in between."""
    history = [past(Rung.RETRY), past(Rung.ROLLBACK, progress=50), past(Rung.RETRY)]
    assert rung(history) is Rung.ROLLBACK


def test_without_an_older_version_the_rollback_is_skipped() -> None:
    """And the reasons say so."""
    decision = next_rung([past(Rung.RETRY)], (), LADDER, can_rollback=False)
    assert decision.rung is Rung.REPLAY
    assert any("no earlier good code version" in reason for reason in decision.reasons)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (IncidentClass.MACHINE_FAULT, Rung.ROLLBACK),
        (IncidentClass.JOB_HANG, Rung.ROLLBACK),
        (IncidentClass.CODE_UPDATE, Rung.RETRY),
        (IncidentClass.USER_CODE_ERROR, Rung.RETRY),
    ],
)
def test_what_an_incident_without_rungs_counts_as(kind: IncidentClass, expected: Rung) -> None:
    """An eviction and restart was a retry; an engineer's update was no attempt."""
    assert rung([past(kind=kind)]) is expected


def test_a_rung_with_zero_budget_is_never_tried() -> None:
    """Sites without spare capacity may switch replay off."""
    policy = LADDER.model_copy(update={"attempts": {Rung.RETRY: 2}})
    assert next_rung([], (Rung.RETRY,), policy, True).rung is Rung.RETRY
    assert next_rung([], (Rung.RETRY, Rung.RETRY), policy, True).rung is Rung.HUMAN


RUNGS = st.sampled_from([Rung.RETRY, Rung.ROLLBACK, Rung.REPLAY])


@given(st.lists(st.lists(RUNGS, max_size=3), max_size=6), st.lists(RUNGS, max_size=4), st.booleans())
def test_a_spent_rung_is_never_chosen(history: list[list[Rung]], done: list[Rung], rollback: bool) -> None:
    """Bounded: without progress every answer uses budget up, so a human comes in the end."""
    listed = [past(*rungs) for rungs in history if rungs]
    decision = next_rung(listed, done, LADDER, rollback)
    used = [*done, *(r for p in listed for r in p.rungs)].count(decision.rung)
    assert decision.rung is Rung.HUMAN or used < LADDER.attempts[decision.rung]
    assert decision.reasons

"""Conditions that end the work on an incident whose job trains on."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.models.alert import Alert, AlertKind, Classification, Incident, IncidentClass, IncidentState
from holdfast.models.history import Action, ActionState
from holdfast.policies.config.policy import Policy
from holdfast.policies.escalate import overtake

POLICY = Policy.load().classify


def incident(of: IncidentClass = IncidentClass.FAIL_SLOW) -> Incident:
    return Incident(
        id="gpt-1",
        job="gpt",
        incident_class=of,
        state=IncidentState.OPEN,
        epoch=1,
        reasons=("the job became slow",),
        detected_at=0.0,
        opened_at=0.0,
    )


def alert(kind: AlertKind, **evidence: Any) -> Alert:
    return Alert(kind=kind, job="gpt", machine="m1", epoch=1, at=1.0, evidence=evidence)


def action(kind: str, state: ActionState = ActionState.DONE) -> Action:
    return Action(incident_id="gpt-1", key=kind, kind=kind, begun_at=0.0, state=state)


ASKED = action("approve", ActionState.INTENT)


@pytest.mark.parametrize("kind", ["rank_exit", "hang", "machine_lost", "non_finite", "metric_jump"])
def test_a_slow_job_that_no_longer_trains_comes_first(kind: str) -> None:
    """Whether a person is asked or not."""
    for actions in ([], [action("vote")], [action("vote"), ASKED]):
        assert overtake.may(alert(AlertKind(kind)), incident(), actions, POLICY)


@pytest.mark.parametrize("kind", ["gpu_throttled", "rank_log", "straggler", "mfu_decline", "nic_errors"])
def test_what_a_slow_job_survives_is_evidence(kind: str) -> None:
    """It joins."""
    assert not overtake.may(alert(AlertKind(kind)), incident(), [ASKED], POLICY)


@pytest.mark.parametrize("stops", ["hold", "pause"])
def test_what_comes_once_the_playbook_stops_the_job_is_evidence(stops: str) -> None:
    """The job starts again in any case."""
    begun = action(stops, ActionState.INTENT)
    assert not overtake.may(alert(AlertKind.RANK_EXIT), incident(), [begun], POLICY)


def test_a_sure_sign_takes_a_question_back_and_joins_a_search() -> None:
    """The search for the slow machine ends with it; a person who is asked about another one need not be awaited."""
    xid = alert(AlertKind.XID, xid=79)
    assert not overtake.may(xid, incident(), [action("vote")], POLICY)
    assert overtake.may(xid, incident(), [action("vote"), ASKED], POLICY)
    assert not overtake.may(alert(AlertKind.XID, xid=13), incident(), [ASKED], POLICY)


def test_a_suspected_corruption_is_not_overtaken_by_another_report_of_itself() -> None:
    """Nor by a machine that differs: that is what it is about."""
    suspected = incident(IncidentClass.SILENT_CORRUPTION)
    assert not overtake.may(alert(AlertKind.METRIC_JUMP), suspected, [ASKED], POLICY)
    assert overtake.may(alert(AlertKind.RANK_EXIT), suspected, [ASKED], POLICY)


@pytest.mark.parametrize("of", [one for one in IncidentClass if one not in overtake.TRAINS_ON])
def test_an_incident_that_stops_the_job_is_never_overtaken(of: IncidentClass) -> None:
    """Its playbook is at work on a job that stands."""
    assert not overtake.may(alert(AlertKind.RANK_EXIT), incident(of), [], POLICY)


def test_both_reports_name_the_other() -> None:
    """A reader of either finds out about the other."""
    found = Classification(
        incident_class=IncidentClass.JOB_CRASH, confidence=0.9, reasons=("rank 3 was killed by SIGKILL",)
    )
    assert "job_crash" in (reason := overtake.handed_over(incident(), found))
    assert "rank 3 was killed by SIGKILL" in reason
    assert "the job became slow" in reason
    assert overtake.taken_over(incident()) == (
        "gpt-1 (fail_slow) was worked on until then: the job became slow"
    )


@pytest.mark.parametrize("wanted", ["machine_fault", "job_crash", "scale_job", ""])
def test_what_a_person_wants_done_does_not_wait_for_an_answer(wanted: str) -> None:
    """Nor does an update that takes effect now."""
    for kind in (AlertKind.MANUAL, AlertKind.CODE_UPDATE):
        assert overtake.may(alert(kind, **{"class": wanted}), incident(), [ASKED], POLICY)
        assert not overtake.may(alert(kind, **{"class": wanted}), incident(), [action("hold")], POLICY)


def test_a_person_who_finds_the_job_slow_too_or_a_job_that_grows_by_itself_waits() -> None:
    """Neither is a wish for another act."""
    for wanted in ("fail_slow", "silent_corruption", "checkpoint_unrestorable", "planned_move"):
        assert not overtake.may(alert(AlertKind.MANUAL, **{"class": wanted}), incident(), [ASKED], POLICY)
    grown = alert(AlertKind.MANUAL, **{"class": "scale_job", "grown": True})
    assert not overtake.may(grown, incident(), [ASKED], POLICY)


def test_which_incidents_leave_their_job_alone() -> None:
    """Those that look or ask beside the training, until they stop it."""
    assert overtake.leaves_alone(incident(), [action("vote"), ASKED])
    assert overtake.leaves_alone(incident(IncidentClass.PLANNED_MOVE), [action("bring")])
    assert not overtake.leaves_alone(incident(IncidentClass.PLANNED_MOVE), [action("hold")])
    assert not overtake.leaves_alone(incident(IncidentClass.MACHINE_FAULT), [])

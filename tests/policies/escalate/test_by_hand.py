"""Evictions that people asked for."""

from __future__ import annotations

from holdfast.models.alert import AlertKind, Incident, IncidentClass, IncidentState
from holdfast.models.history import Action
from holdfast.models.machine import Scope
from holdfast.policies.escalate import by_hand
from tests.policies.make import alert

MINE = alert(AlertKind.MANUAL, machine="m1", evidence={"class": "machine_fault", "by": "ann"})


def test_only_all_of_them_count() -> None:
    """One that an alert added is asked about."""
    assert by_hand.asks_for([MINE], ["m1"])
    assert not by_hand.asks_for([MINE], ["m1", "m2"])
    assert not by_hand.asks_for([MINE], ["m2"])
    assert not by_hand.asks_for([MINE], [])


def test_the_scope_is_the_one_that_the_person_named() -> None:
    """The newest counts; a report of another machine, class or an unknown word names none."""
    narrow = MINE.model_copy(update={"evidence": MINE.evidence | {"scope": "job"}})
    wide = MINE.model_copy(update={"evidence": MINE.evidence | {"scope": "cluster"}})
    odd = MINE.model_copy(update={"evidence": MINE.evidence | {"scope": "rack"}})
    slow = alert(AlertKind.MANUAL, machine="m1", evidence={"class": "fail_slow", "by": "ann", "scope": "job"})
    assert by_hand.scope([MINE, narrow], (), "m1") is Scope.JOB
    assert by_hand.scope([narrow, wide], (), "m1") is Scope.CLUSTER
    assert by_hand.scope([narrow], (), "m2") is None
    assert by_hand.scope([MINE, odd, slow], (), "m1") is None


def test_a_yes_that_names_a_scope_counts_for_the_machine_that_was_asked_about() -> None:
    """It is newer than what was reported; a no names none."""
    narrow = MINE.model_copy(update={"evidence": MINE.evidence | {"scope": "cluster"}})
    yes = {"target": "m1", "approve": True, "scope": "job"}
    assert by_hand.scope([narrow], [yes], "m1") is Scope.JOB
    assert by_hand.scope([], [yes], "m2") is None
    assert by_hand.scope([], [yes | {"approve": False}], "m1") is None
    assert by_hand.scope([], [{"target": "m1", "approve": True}], "m1") is None


def test_a_report_of_another_class_asks_for_no_eviction() -> None:
    """A person who finds the job slow accuses no machine surely; nor does a monitor."""
    assert not by_hand.asks_for(
        [alert(AlertKind.MANUAL, machine="m1", evidence={"class": "fail_slow"})], ["m1"]
    )
    assert not by_hand.asks_for([alert(AlertKind.GPU_LOST, machine="m1")], ["m1"])


def test_a_run_or_an_event_of_an_automation_is_no_persons_yes() -> None:
    """A playbook that was started as a run has a report by hand too; the policy's rule holds for both."""
    fault = {"class": "machine_fault"}
    run = alert(AlertKind.MANUAL, machine="m1", evidence=fault | {"text": "started manually"})
    event = alert(AlertKind.MANUAL, machine="m1", evidence=fault | {"by": "a flow", "source": "prefect"})
    assert not by_hand.asks_for([run], ["m1"])
    assert not by_hand.asks_for([event], ["m1"])
    assert by_hand.asks_for([run, MINE], ["m1"])


def test_a_wish_joins_what_takes_machines_out_until_the_job_is_being_started() -> None:
    """Not a move, another size or new code, nor once a standby is claimed; a new round, or attempt, starts again."""

    def acting(incident_class: IncidentClass) -> Incident:
        return Incident(
            id="gpt-1",
            job="gpt",
            incident_class=incident_class,
            state=IncidentState.OPEN,
            epoch=1,
            detected_at=0.0,
            opened_at=0.0,
        )

    def acts(*kinds: str) -> list[Action]:
        return [
            Action(incident_id="gpt-1", key=f"{kind}:{at}", kind=kind, begun_at=at)
            for at, kind in enumerate(kinds)
        ]

    crash = acting(IncidentClass.JOB_CRASH)
    assert by_hand.joins(MINE, crash, acts())
    assert by_hand.joins(MINE, crash, acts("pause", "check", "rung"))
    assert not by_hand.joins(MINE, crash, acts("pause", "evict", "swap"))
    assert not by_hand.joins(MINE, crash, acts("pause", "start", "verify"))
    assert by_hand.joins(MINE, crash, acts("pause", "start", "verify", "pause", "check"))
    assert by_hand.joins(MINE, crash, acts("pause", "swap", "again"))
    for other in (IncidentClass.SCALE_JOB, IncidentClass.CODE_UPDATE, IncidentClass.PLANNED_MOVE):
        assert not by_hand.joins(MINE, acting(other), acts())
    unnamed = MINE.model_copy(update={"evidence": {"class": "machine_fault"}})
    assert not by_hand.joins(unnamed, crash, acts())


def test_who_asked_is_named_for_each_machine_in_its_present_life() -> None:
    """A machine that restarted since is another one; one that the job does not use is none."""
    evidence = MINE.evidence | {"text": "smells burnt"}
    wish = MINE.model_copy(update={"incarnation": "i1", "evidence": evidence})
    assert by_hand.asked([wish], {"m1": "i1"}) == {"m1": "ann asked for it: smells burnt"}
    assert by_hand.asked([wish], {"m1": "i2"}) == {}
    assert by_hand.asked([wish], {"m0": "i1"}) == {}

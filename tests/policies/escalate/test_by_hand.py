"""Evictions that people asked for."""

from __future__ import annotations

from holdfast.models.alert import AlertKind
from holdfast.policies.escalate import by_hand
from tests.policies.make import alert

MINE = alert(AlertKind.MANUAL, machine="m1", evidence={"class": "machine_fault", "by": "ann"})


def test_only_all_of_them_count() -> None:
    """One that an alert added is asked about."""
    assert by_hand.asks_for([MINE], ["m1"])
    assert not by_hand.asks_for([MINE], ["m1", "m2"])
    assert not by_hand.asks_for([MINE], ["m2"])
    assert not by_hand.asks_for([MINE], [])


def test_a_report_of_another_class_asks_for_no_eviction() -> None:
    """Somebody who finds the job slow accuses no machine surely; nor does a monitor."""
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

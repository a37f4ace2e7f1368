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

"""Whether a lost machine is replaced before its playbook runs."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.models.alert import Alert, AlertKind
from holdfast.models.classes import IncidentClass
from holdfast.policies.restore.replace_first import Loss, seen_lost, why_playbook

LOST = Loss(
    incident_class=IncidentClass.MACHINE_FAULT,
    machine="m1",
    seen_lost=True,
    unreached=("m1",),
    sure=("m1",),
    kept=6,
    standby=True,
)


def test_a_machine_that_is_surely_lost_is_replaced_at_once() -> None:
    """Its agent was found dead, and refuses connections now; every other machine answered."""
    assert why_playbook(LOST) == ""


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"incident_class": IncidentClass.NETWORK_FAULT}, "a network_fault is no lost machine"),
        ({"seen_lost": False}, "m1 was not found dead"),
        ({"kept": 0}, "no rank kept its process"),
        ({"sure": ("m1", "m2")}, "m2 surely fail, too"),
        ({"unreached": ()}, "did not reach none"),
        ({"unreached": ("m1", "m2")}, "did not reach m1, m2"),
        ({"silent": ("m1",)}, "ranks of m1 may run on"),
        ({"asks": "a person is asked"}, "a person is asked"),
        ({"breaker": "not evicting m1"}, "not evicting m1"),
        ({"standby": False}, "no standby can take its place now"),
    ],
)
def test_each_doubt_leaves_it_to_the_playbook(changed: dict[str, Any], why: str) -> None:
    """One of them is enough."""
    assert why in why_playbook(LOST.model_copy(update=changed))


@pytest.mark.parametrize(
    ("changed", "seen"),
    [
        ({}, True),
        ({"incarnation": "before"}, False),
        ({"incarnation": None}, False),
        ({"machine": "m2"}, False),
        ({"kind": AlertKind.GPU_LOST}, False),
    ],
)
def test_only_an_alert_about_the_present_life_says_that_it_is_lost(
    changed: dict[str, Any], seen: bool
) -> None:
    """A machine of that name that registered since is another."""
    alert = Alert(kind=AlertKind.MACHINE_LOST, job="gpt", machine="m1", incarnation="now", at=1.0)
    assert seen_lost([alert.model_copy(update=changed)], "m1", "now") is seen

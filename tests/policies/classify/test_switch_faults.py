"""A switch inferred from its machines."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.models.alert import Alert, AlertKind, Classification, IncidentClass
from holdfast.policies.classify.decision import Decision, JobContext, TooEarly
from holdfast.policies.classify.incident_class import classify
from holdfast.policies.config.policy import Policy
from holdfast.policies.detect import switches
from tests.policies.make import NOW, alert, job

PACKAGED = Policy.load()
NETWORK = PACKAGED.detect.network.model_copy(
    update={"switches": {"leaf-1": ("m[0-3]",), "leaf-2": ("m[4-7]",)}}
)
POLICY = PACKAGED.model_copy(update={"detect": PACKAGED.detect.model_copy(update={"network": NETWORK})})
MACHINES = [f"m{number}" for number in range(8)]


@pytest.mark.parametrize(
    ("missing", "found"),
    [
        ([], {}),
        (["m0"], {}),
        (["m0", "m4"], {}),
        (["m0", "m1"], {"leaf-1": ["m0", "m1"]}),
        (["m1", "m0", "m3", "m7"], {"leaf-1": ["m0", "m1", "m3"]}),
        (MACHINES, {"leaf-1": ["m0", "m1", "m2", "m3"], "leaf-2": ["m4", "m5", "m6", "m7"]}),
        (["elsewhere", "m0"], {}),
    ],
)
def test_enough_machines_of_one_switch(missing: list[str], found: dict[str, list[str]]) -> None:
    """Half of its machines, and at least two."""
    assert switches.suspected(missing, MACHINES, NETWORK) == found


def test_without_a_topology_nothing_is_inferred() -> None:
    """The packaged policy knows no switches."""
    assert switches.suspected(MACHINES, MACHINES, PACKAGED.detect.network) == {}


def down(machine: str, at: float) -> Alert:
    return alert(AlertKind.NIC_DOWN, machine=machine, at=at, evidence={"device": "mlx5_0/1"})


def decided(*alerts: Alert, now: float, **changes: Any) -> Decision:
    return classify(alerts, JobContext(job=job(machines=8, **changes), now=now), POLICY)


def test_one_port_that_fails_again_is_its_machine() -> None:
    """No other machine of the switch has a fault."""
    found = decided(down("m1", NOW), down("m1", NOW + 30), now=NOW + 30)
    assert isinstance(found, Classification)
    assert (found.incident_class, found.machine) == (IncidentClass.NETWORK_FAULT, "m1")


def test_while_it_may_be_the_switch_no_machine_is_accused() -> None:
    """Until its two rounds are over."""
    seen = [down("m1", NOW), down("m2", NOW + 10), down("m1", NOW + 30)]
    waiting = decided(*seen, now=NOW + 30)
    assert isinstance(waiting, TooEarly)
    assert NOW + 60 < waiting.until_s <= NOW + 120
    switch = alert(
        AlertKind.SWITCH_DOWN,
        at=NOW + 60,
        evidence={"switch": "leaf-1", "machines": ["m0", "m1", "m2", "m3"]},
    )
    found = decided(*seen, switch, now=NOW + 61)
    assert isinstance(found, Classification)
    assert (found.incident_class, found.machine) == (IncidentClass.NETWORK_FAULT, None)


def test_when_the_switch_is_not_named_in_time_the_machine_is() -> None:
    """The others came back: it was two ports."""
    found = decided(down("m1", NOW), down("m2", NOW + 10), down("m1", NOW + 30), now=NOW + 121)
    assert isinstance(found, Classification)
    assert found.machine == "m1"

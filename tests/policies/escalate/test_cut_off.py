"""Decide whether a machine whose agent lost contact with the gateway is at fault."""

from __future__ import annotations

import math

import pytest

from holdfast.models.alert import Alert, AlertKind
from holdfast.policies.escalate.cut_off import is_cut_off, late, why_none, why_spared

NEVER = math.inf
OTHERS = "m3, m4 heard the gateway late as well"


def ended(machine: str = "m1", **evidence: object) -> Alert:
    known = {"error_type": "CutOff", "cause": "network", "cascade": False} | evidence
    return Alert(kind=AlertKind.RANK_EXIT, job="gpt", machine=machine, rank=1, at=1.0, evidence=known)


@pytest.mark.parametrize(
    ("late_s", "text"),
    [
        ({}, ""),
        ({"m1": 0.0}, ""),
        ({"m1": 0.0, "m2": NEVER, "m3": NEVER}, ""),
        ({"m1": 0.0, "m2": 31.0}, ""),
        ({"m1": 0.0, "m2": 30.0}, "m2 heard"),
        ({"m1": 0.0, "m2": 0.0, "m3": 12.0, "m4": NEVER}, "m2, m3 heard"),
        ({"m1": 0.0, "m2": 0.0} | {f"s{at}": NEVER for at in range(3)}, "m2 heard"),
        ({"m1": 0.0, "m2": 0.0} | {f"s{at}": NEVER for at in range(4)}, ""),
        ({f"m{at}": 1.0 for at in range(1, 9)}, "m2, m3, m4 and 4 more heard"),
    ],
)
def test_others_that_were_late_at_the_same_time(late_s: dict[str, float], text: str) -> None:
    """A quarter of them at least: one of a hundred is a coincidence."""
    found = late(late_s, "m1")
    assert str(found.get("late_elsewhere", "")).startswith(text)
    assert bool(found) == bool(text)


def test_a_machine_that_waited_with_others_is_spared() -> None:
    """Its ranks on other machines ended with it, which is no evidence about it."""
    cascade = ended("m0", error_type="RuntimeError", cascade=True)
    assert OTHERS in why_spared(["m1"], [cascade, ended(late_elsewhere=OTHERS)])


@pytest.mark.parametrize(
    "alerts",
    [
        [],
        [ended()],
        [ended(late_elsewhere=OTHERS), ended()],
        [ended(late_elsewhere=OTHERS), ended(error_type="RuntimeError", cause="gpu")],
        [
            ended(late_elsewhere=OTHERS),
            Alert(kind=AlertKind.NIC_DOWN, machine="m1", at=1.0, evidence={"device": "eth0"}),
        ],
    ],
    ids=[
        "nothing known",
        "no other was late",
        "cut off alone before",
        "its GPU failed too",
        "its port went down",
    ],
)
def test_a_machine_that_anything_else_speaks_against_is_not(alerts: list[Alert]) -> None:
    """Nor is it where the others heard the gateway."""
    assert why_spared(["m1"], alerts) == ""


def test_all_or_none_of_the_accused_are_spared() -> None:
    """One of them was cut off alone."""
    assert why_spared(["m1", "m2"], [ended("m1", late_elsewhere=OTHERS), ended("m2")]) == ""
    assert why_spared([], [ended(late_elsewhere=OTHERS)]) == ""


def test_ranks_that_were_cut_off_everywhere_point_to_busy_hosts() -> None:
    """The summary states so, where no machine is accused; not where one was cut off alone, or ended otherwise."""
    late = ended("m1", late_elsewhere=OTHERS)
    assert OTHERS in why_none([late, ended("m2", late_elsewhere=OTHERS), ended("m3", cascade=True)])
    for other in (ended("m2"), ended("m2", error_type="RuntimeError")):
        assert why_none([late, other]) == ""
    assert why_none([]) == ""


def test_what_counts_as_cut_off() -> None:
    """Ranks that their own machine ended."""
    assert is_cut_off(ended())
    assert not is_cut_off(ended(error_type="RuntimeError"))

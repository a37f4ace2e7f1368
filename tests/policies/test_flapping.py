"""Machines that come and go."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.models.alert import Alert, AlertKind
from holdfast.policies import flapping
from holdfast.policies.policy import Policy

FLAPS = Policy.load().ladder.flaps
NOW = 1e6


def test_the_third_time_within_the_window_is_a_fault() -> None:
    """An upgrade restarts an agent once, a hasty person twice."""
    assert flapping.why([NOW - 200, NOW - 100], NOW, FLAPS) == ""
    assert "3 times within 30 min" in flapping.why([NOW - 200, NOW, NOW - 100], NOW, FLAPS)
    assert flapping.why([NOW - FLAPS.window_s, NOW - 100, NOW], NOW, FLAPS) == ""


def test_what_is_told_again_counts_once() -> None:
    """A port that stays down is told at every look."""
    assert flapping.why([NOW - 30 * each for each in range(60)], NOW, FLAPS) == ""


@pytest.mark.parametrize(
    ("kind", "evidence", "counted"),
    [
        (AlertKind.HOST_FAULT, {"check": flapping.RESTARTED}, True),
        (AlertKind.HOST_FAULT, {"check": "nic_flapping"}, True),
        (AlertKind.HOST_FAULT, {"check": "disk_fault"}, False),
        (AlertKind.NIC_DOWN, {}, True),
        (AlertKind.NIC_FLAPPING, {}, True),
        (AlertKind.NIC_ERRORS, {}, False),
        (AlertKind.RANK_EXIT, {"error_type": "AgentRestarted"}, False),
    ],
)
def test_what_counts(kind: AlertKind, evidence: dict[str, str], counted: bool) -> None:
    """Agents and links; the rank that an agent took along is no second time."""
    alert = Alert(kind=kind, machine="m1", at=1.0, evidence=evidence)
    assert flapping.counts(alert) is counted
    assert not flapping.counts(alert.model_copy(update={"firing": False}))


@given(st.lists(st.floats(0, 2 * NOW), max_size=40))
def test_it_never_takes_fewer_than_the_count(times: list[float]) -> None:
    """And it is over once the window has passed without another."""
    if flapping.why(times, NOW, FLAPS):
        assert sum(NOW - FLAPS.window_s < at for at in times) >= FLAPS.count
    last = max(times, default=0.0)
    assert flapping.why(times, last + FLAPS.window_s, FLAPS) == ""

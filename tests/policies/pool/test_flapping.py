"""Machines that come and go."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.models.alert import Alert, AlertKind
from holdfast.policies.config.policy import Policy
from holdfast.policies.pool import flapping

FLAPS = Policy.load().ladder.flaps
NOW = 1e6


def test_the_third_time_within_the_window_is_a_fault() -> None:
    """An upgrade restarts an agent once, a hasty person twice."""
    assert flapping.why([NOW - 200, NOW - 100], NOW, FLAPS) == ""
    assert "3 times within 30 min" in flapping.why([NOW - 200, NOW, NOW - 100], NOW, FLAPS)
    assert flapping.why([NOW - FLAPS.window_s, NOW - 100, NOW], NOW, FLAPS) == ""


def test_what_is_reported_again_counts_once() -> None:
    """A port that stays down is reported at every look."""
    assert flapping.why([NOW - 30 * each for each in range(60)], NOW, FLAPS) == ""


def test_an_agent_that_restarts_all_the_time_flaps_however_fast() -> None:
    """Each restart is recorded once; a few within a minute are one, as is a reboot with what it does to links."""
    assert "3 times" in flapping.why([], NOW, FLAPS, [NOW - 45 * each for each in range(5)])
    assert flapping.why([], NOW, FLAPS, [NOW - 10 * each for each in range(6)]) == ""
    reboots = [NOW - 600, NOW]
    assert flapping.why([at + 20 for at in reboots], NOW, FLAPS, reboots) == ""
    assert flapping.kept_out([], [], [], FLAPS, [NOW - 45 * each for each in range(5)])


def test_what_goes_away_with_half_of_a_switch_is_not_the_machines_own() -> None:
    """A minute apart is at once: ports are looked at each half a minute. One other of five is no such part."""
    limits = Policy.load().detect.network
    leaf = [frozenset({"m1", "m2", "m3", "m4"})]
    mine = [NOW - 900, NOW - 300]
    assert flapping.own(mine, {"m2": [NOW - 920]}, [leaf[0] - {"m3", "m4"}], limits) == [NOW - 300]
    assert flapping.own(mine, {"m2": [NOW - 920]}, leaf, limits) == [NOW - 300]
    assert flapping.own(mine, {"m2": [NOW - 920]}, [leaf[0] | {"m5"}], limits) == mine
    assert flapping.own(mine, {"m2": [NOW - 920], "m9": mine}, [leaf[0] | {"m5"}], limits) == mine
    assert flapping.own(mine, {"m2": [NOW - 990, NOW - 200]}, leaf, limits) == mine
    assert flapping.own(mine, {"m2": mine}, [], limits) == mine


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


FLAPPED = [NOW, NOW + 120, NOW + 240]


def out(passed: list[float], failed: list[float] | None = None, times: list[float] = FLAPPED) -> str:
    return flapping.kept_out(times, passed, failed or [], FLAPS)


def test_a_standby_that_flapped_comes_back_when_checks_passed_for_a_while() -> None:
    """One look is no while; a look that failed or another flap starts it again."""
    hour = 3600.0
    assert "no checks passed since" in out([])
    assert "passed for 0 s" in out([NOW + hour])
    assert out([NOW + hour, NOW + 2 * hour]) == ""
    assert out([NOW - hour, NOW + hour])
    assert out([NOW + hour, NOW + 3 * hour], [NOW + 2 * hour])
    assert out([NOW + hour, NOW + 3 * hour, NOW + 4 * hour], [NOW + 2 * hour]) == ""
    assert out([NOW + hour, NOW + 2 * hour], times=[*FLAPPED, NOW + 1.5 * hour])


def test_one_that_came_and_went_seldom_was_never_out() -> None:
    """Three times in a day are no flapping."""
    assert out([], times=[NOW, NOW + 4000, NOW + 8000, NOW + 8010]) == ""

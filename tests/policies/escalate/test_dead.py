"""Machines that are dead for sure: two observers, in their present life; and when the breaker does not count them."""

from __future__ import annotations

import pytest

from holdfast.models.alert import AlertKind
from holdfast.policies.escalate import dead
from tests.policies.make import alert

LIVES = {"m1": "i1", "m2": "i1"}


def lost(machine: str, incarnation: str = "i1") -> object:
    return alert(AlertKind.MACHINE_LOST, machine=machine, incarnation=incarnation)


def test_who_refuses_gateway_and_playbook_is_dead() -> None:
    alerts = [lost("m1"), lost("m2")]
    assert dead.surely(alerts, LIVES, ["m1", "m2"], []) == ("m1", "m2")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("alerts", "unreached", "silent"),
    [
        ([lost("m1")], [], []),
        ([lost("m1")], ["m1"], ["m1"]),
        ([], ["m1"], []),
        ([lost("m1", "i0")], ["m1"], []),
        ([lost("m9")], ["m9"], []),
    ],
    ids=["answers", "silent", "one-observer", "former-life", "left-the-job"],
)
def test_no_other_machine_is(alerts: list[object], unreached: list[str], silent: list[str]) -> None:
    assert dead.surely(alerts, LIVES, unreached, silent) == ()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("gone", "before", "job_size", "standbys", "free"),
    [(8, 0, 8, 8, True), (8, 0, 8, 7, False), (5, 4, 8, 9, False), (4, 4, 8, 9, True), (0, 0, 8, 8, False)],
)
def test_each_place_is_refilled_once_and_only_where_standbys_are(
    gone: int, before: int, job_size: int, standbys: int, free: bool
) -> None:
    assert dead.go_uncounted(gone, before, job_size, standbys) is free


@pytest.mark.parametrize(
    ("lost", "silent"),
    [
        ([("m1", "i1", True)], {"m1"}),
        ([("m1", "i1", False)], set()),
        ([("m1", "i1", None)], set()),
        ([("m1", "i0", True)], set()),
        ([("m9", "i1", True)], set()),
        ([("m1", "i1", True), ("m1", "i1", False), ("m2", "i1", True)], {"m2"}),
    ],
    ids=["silent", "refused", "from-a-monitor", "former-life", "left-the-job", "refused-later"],
)
def test_who_was_only_silent(lost: list[tuple[str, str, bool | None]], silent: set[str]) -> None:
    alerts = [
        alert(
            AlertKind.MACHINE_LOST,
            machine=name,
            incarnation=life,
            evidence={} if each is None else {"silent": each},
        )
        for name, life, each in lost
    ]
    assert dead.only_silent(alerts, LIVES) == silent

"""Failures that come after about as many steps each time: a leak. Progress between them hides them from the ladder."""

from __future__ import annotations

import random

import pytest

from holdfast.models.alert import IncidentClass
from holdfast.policies.config.policy import Policy
from holdfast.policies.escalate import regular
from holdfast.policies.escalate.regular import FailedRun

POLICY = Policy.load().ladder.regular


def runs(*steps: int, what: str = "SIGKILL", version: str = "v1") -> list[FailedRun]:
    known = {"incident_class": IncidentClass.HOST_PRESSURE, "what": what, "version": version}
    return [FailedRun.model_validate(known | {"steps": each}) for each in steps]


def crashes(*steps: int, **more: object) -> list[FailedRun]:
    return [
        each.model_copy(update={"incident_class": IncidentClass.JOB_CRASH, **more}) for each in runs(*steps)
    ]


def test_kills_from_outside_and_lost_machines_are_no_leak() -> None:
    """Kills by a person every quarter of an hour come after about as many steps as well."""
    assert regular.find(crashes(20, 20, 20, 20), POLICY)
    assert regular.find(crashes(20, 20, 20, 20, from_outside=True), POLICY) is None
    lost = crashes(20, 20, 20, 20, incident_class=IncidentClass.MACHINE_FAULT, what="machine_lost")
    assert regular.find(lost, POLICY) is None


def test_a_leak_is_named_with_its_steps() -> None:
    found = regular.find(runs(20, 22, 19, 20), POLICY)
    assert found is not None
    assert found.in_words.startswith("SIGKILL after 19 to 22 steps, 4 times in a row: memory grows")
    assert not found.look


def test_a_person_looks_at_the_fifth_and_then_ever_more_seldom() -> None:
    asked = [n for n in range(1, 45) if (it := regular.find(runs(*[20] * n), POLICY)) and it.look]
    assert asked == [5, 10, 20, 40]


@pytest.mark.parametrize(
    "others",
    [
        runs(20, 20, 60, 20),
        runs(20, 20) + runs(20, 20, what="SIGSEGV"),
        runs(20, 20, version="v0") + runs(20, 20),
        runs(20, 20, 0, 20),
        runs(20, 20, 20),
        runs(20, 20, 20, 20, what=""),
        [],
    ],
    ids=["uneven", "another-failure", "other-code", "no-step", "few", "unknown", "none"],
)
def test_other_failures_are_not_regular(others: list[FailedRun]) -> None:
    assert regular.find(others, POLICY) is None


def test_kills_at_random_are_seldom_taken_for_a_leak() -> None:
    """By chance now and then: it costs longer checks, and words that say what was seen."""
    drawn = random.Random(7)
    taken = sum(
        regular.find(runs(*(1 + int(drawn.expovariate(1 / 500)) for _ in range(4))), POLICY) is not None
        for _ in range(1000)
    )
    assert taken < 60


def test_memory_of_a_gpu_is_memory() -> None:
    listed = [
        each.model_copy(update={"incident_class": IncidentClass.JOB_CRASH}) for each in runs(9, 9, 9, 9)
    ]
    plain = regular.find(listed, POLICY)
    of_gpu = regular.find([each.model_copy(update={"what": "OutOfMemoryError"}) for each in listed], POLICY)
    assert plain is not None
    assert of_gpu is not None
    assert "open files" in plain.in_words
    assert "open files" not in of_gpu.in_words


@pytest.mark.parametrize(("longest", "came"), [(0, False), (43, False), (44, True), (400, True)])
def test_a_leak_came_with_the_version_where_the_one_before_ran_much_longer(longest: int, came: bool) -> None:
    """An earlier version that is only known to have run for as long proves nothing: it may leak as well."""
    found = regular.find(runs(20, 22, 19, 20, version="v2"), POLICY)
    assert found is not None
    reason = regular.came_with(found, "v2", "v1", longest)
    assert bool(reason) is came
    if came:
        assert reason.startswith("SIGKILL comes after 19 to 22 steps of version v2, 4 times in a row")
        assert reason.endswith(f"and v1 made {longest} from one start")

"""When an incident that met a limit is tried again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.models.alert import IncidentClass
from holdfast.models.job import JobState
from holdfast.models.missing import Missing
from holdfast.models.wait import Wait
from holdfast.policies.config.policy import Policy
from holdfast.policies.escalate.waits import WaitFacts, due, duration, may_run_on, outlook, pause_s, times

AGAIN = Policy.load().again
T0 = 1000.0


def wait(missing: Missing = Missing.CHANGE, times: int = 1, *, runs_on: bool = False) -> Wait:
    made = Wait(
        incident_id="gpt-3",
        job="gpt",
        missing=missing,
        why="x",
        since=T0,
        next_at=T0,
        times=times,
        runs_on=runs_on,
    )
    return outlook(made, None, AGAIN).wait


def seen(after_s: float, state: JobState = JobState.FAILED, **known: object) -> WaitFacts:
    return WaitFacts.model_validate({"now": T0 + after_s, "job_state": state, "silent": True, **known})


def test_pauses_grow_up_to_the_longest() -> None:
    """A minute, two, four, and so on up to an hour."""
    assert [pause_s(times, AGAIN) for times in (1, 2, 3, 7, 100_000)] == [60, 120, 240, 3600, 3600]


@pytest.mark.parametrize(
    ("missing", "own", "earlier", "after_s", "number"),
    [
        (Missing.STANDBY, None, None, 0.0, 1),
        (Missing.STANDBY, 3, None, 0.0, 4),
        (Missing.STANDBY, None, 3, 300.0, 4),
        (Missing.STANDBY, None, 3, 86_400.0, 1),  # long ago: another matter
        (Missing.APPROVAL, None, 3, 300.0, 1),  # something else is missing
    ],
)
def test_waits_of_one_matter_count_on(
    missing: Missing, own: int | None, earlier: int | None, after_s: float, number: int
) -> None:
    """Also where each is of an incident of its own, as the job trains."""
    mine = wait(missing, own) if own else None
    before = wait(Missing.STANDBY, earlier, runs_on=True) if earlier else None
    assert times(missing, mine, before, T0 + 60 + after_s, AGAIN) == number


@given(st.sampled_from(list(Missing)), st.integers(1, 10**9))
def test_no_wait_is_for_ever(missing: Missing, times: int) -> None:
    """Whatever is missing, it is due within the longest pause, and people see what and when."""
    waits = wait(missing, times)
    assert T0 < waits.next_at <= T0 + AGAIN.longest_s
    assert due(waits, seen(AGAIN.longest_s))
    message = outlook(waits, None, AGAIN).message
    assert message.startswith("Needs ")
    assert "You can: `holdfast" in message
    assert "{" not in message


@pytest.mark.parametrize(
    ("missing", "known", "text"),
    [
        (Missing.STANDBY, {"lacking": 1, "standbys": 1}, "1 machine stands by"),
        (Missing.STANDBY, {"lacking": 2, "standbys": 1}, ""),
        (Missing.CHANGE, {"lacking": 1, "standbys": 1}, ""),
        (Missing.CHANGE, {"new_version": "v3"}, "code version v3 came"),
        (Missing.CHANGE, {"at_fault": "m1"}, "machine m1 was found at fault"),
        (Missing.RUNS, {"at_fault": "m1"}, "machine m1 was found at fault"),
        (Missing.RUNS, {"resolved": "gpu_lost of m1"}, ""),
        (Missing.CONTACT, {"silent": False}, "answer again"),
        (Missing.STATE, {"back": "m1"}, "machine m1 is back"),
        (Missing.APPROVAL, {"resolved": "gpu_lost of m1"}, "gpu_lost of m1 was resolved"),
        (Missing.APPROVAL, {"back": "m1"}, "machine m1 restarted"),
        (Missing.EVICTIONS, {"resolved": "gpu_lost of m1"}, "gpu_lost of m1 was resolved"),
        (Missing.EVICTIONS, {"back": "m1"}, "machine m1 restarted"),
        (Missing.EVICTIONS, {"lacking": 1}, "evicted by hand"),
        (Missing.SERVICE, {"resolved": "mount_unresponsive of m1"}, "mount_unresponsive of m1 was resolved"),
        (Missing.CHANGE, {"resolved": "gpu_lost of m1"}, ""),
    ],
)
def test_what_appears_is_taken_at_once(missing: Missing, known: dict[str, object], text: str) -> None:
    """Only what was missing."""
    found = due(wait(missing), seen(2.0, **known))
    assert text in found
    assert bool(found) is bool(text)


def test_what_appears_without_helping_does_not_loop() -> None:
    """Each time it counts later: a standby that cannot be claimed is not tried every second."""
    here = {"lacking": 1, "standbys": 1}
    assert not due(wait(Missing.STANDBY, 6), seen(10.0, **here))
    assert due(wait(Missing.STANDBY, 6), seen(33.0, **here))


def test_a_known_time_is_kept_where_it_comes_before_the_pause_is_over() -> None:
    """The breaker knows when it allows evictions again; a job that can run does not stand still for an hour."""
    sixth = wait(Missing.EVICTIONS, 6)
    made = outlook(sixth, T0 + 1234.0, AGAIN)
    assert made.wait.next_at == T0 + 1234.0
    assert "in 21 min" in made.message
    assert outlook(wait(Missing.EVICTIONS), T0 + 1234.0, AGAIN).wait.next_at == T0 + 60.0


def test_a_job_that_a_person_took_over_is_left_alone() -> None:
    """It runs, or was stopped."""
    assert not due(wait(), seen(9999.0, JobState.RUNNING))
    assert not due(wait(), seen(9999.0, JobState.STOPPED))
    assert due(wait(runs_on=True), seen(9999.0, JobState.RUNNING))


def test_a_job_at_zero_waits_for_machines_too() -> None:
    """A schedule wakes it, and too few stand by."""
    waits = wait(Missing.STANDBY, runs_on=True)
    assert not due(waits, seen(2.0, JobState.SCALED_TO_ZERO))
    assert due(waits, seen(2.0, JobState.SCALED_TO_ZERO, standbys=1)) == "1 machine stands by after 2 s"
    assert "the job stays at zero meanwhile" in outlook(waits, None, AGAIN, at_zero=True).message


@pytest.mark.parametrize(
    ("incident_class", "missing", "rounds", "expected"),
    [
        (IncidentClass.FAIL_SLOW, Missing.STANDBY, 0, True),
        (IncidentClass.SILENT_CORRUPTION, Missing.APPROVAL, 0, True),
        (IncidentClass.JOB_CRASH, Missing.APPROVAL, 0, True),
        (IncidentClass.JOB_CRASH, Missing.EVICTIONS, 0, False),
        (IncidentClass.MACHINE_FAULT, Missing.APPROVAL, 0, True),
        (IncidentClass.MACHINE_FAULT, Missing.STANDBY, 0, False),
        (IncidentClass.MACHINE_FAULT, Missing.APPROVAL, 1, True),
    ],
)
def test_where_a_job_may_run_on(
    incident_class: IncidentClass, missing: Missing, rounds: int, expected: bool
) -> None:
    """At once where it trained, or where a person keeps the machine; after a wait always."""
    assert may_run_on(incident_class, missing, rounds) is expected


def test_a_machine_that_cannot_run_is_waited_for_first() -> None:
    """Started at once, the job would only fail again; after a wait it is tried all the same."""
    assert not may_run_on(IncidentClass.MACHINE_FAULT, Missing.APPROVAL, 0, unable=True)
    assert may_run_on(IncidentClass.MACHINE_FAULT, Missing.APPROVAL, 1, unable=True)
    assert may_run_on(IncidentClass.FAIL_SLOW, Missing.APPROVAL, 0, unable=True)


@pytest.mark.parametrize(("seconds", "text"), [(5, "5 s"), (119, "119 s"), (600, "10 min"), (9000, "2.5 h")])
def test_durations_are_as_coarse_as_needed(seconds: float, text: str) -> None:
    """For people."""
    assert duration(seconds) == text


def test_a_machine_that_is_found_at_fault_ends_the_wait_for_an_unknown_cause() -> None:
    """Other missing things do not come with it: the next attempt knows of it all the same."""
    assert due(wait(Missing.CHANGE), seen(2.0, at_fault="m1")) == "machine m1 was found at fault after 2 s"
    assert due(wait(Missing.CHANGE), seen(2.0)) == ""
    assert due(wait(Missing.STANDBY), seen(2.0, at_fault="m1")) == ""

"""Filter of alerts before classification; each refusal states why."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.errors import NotFiringError, StaleError, UnknownError
from holdfast.models.alert import Alert, AlertKind, IncidentState
from holdfast.models.job import JobState
from holdfast.models.machine import Machine, MachineState
from holdfast.policies.classify import admission_filter
from tests.policies.make import NOW, alert, job, rank_exit

KILLED = rank_exit(0, signal="SIGKILL")


def machine(name: str = "m0", **changes: Any) -> Machine:
    facts: dict[str, Any] = {
        "name": name,
        "address": "a:1",
        "incarnation": "new",
        "state": MachineState.ACTIVE,
        "job": "gpt",
        "registered_at": NOW - 100,
        **changes,
    }
    return Machine(**facts)


@pytest.mark.parametrize(
    ("past", "why"),
    [
        ({"firing": False}, "is resolved"),
        ({"epoch": None, "at": NOW - 7200}, "7200 s old"),
        ({"epoch": None, "at": 1_795_748_762_000.0}, "no Unix time in seconds"),
    ],
)
def test_what_is_over_is_refused(past: dict[str, Any], why: str) -> None:
    """An alert that names its epoch or incarnation may come late: that is compared instead."""
    with pytest.raises(NotFiringError, match=why):
        admission_filter.must_fire(KILLED.model_copy(update=past), NOW, 600.0)
    admission_filter.must_fire(KILLED.model_copy(update={"at": NOW - 7200}), NOW, 600.0)


def test_an_earlier_life_of_a_machine_is_refused() -> None:
    """By its incarnation, or by the time where it names none; a person may report what is past."""
    with pytest.raises(StaleError, match="incarnation 'old' of machine m0 was replaced"):
        admission_filter.must_be_present(KILLED.model_copy(update={"incarnation": "old"}), machine())
    before = KILLED.model_copy(update={"at": NOW - 200})
    with pytest.raises(StaleError, match="before machine m0 was registered"):
        admission_filter.must_be_present(before, machine())
    admission_filter.must_be_present(before.model_copy(update={"kind": AlertKind.MANUAL}), machine())
    admission_filter.must_be_present(KILLED, machine())


@pytest.mark.parametrize(
    ("named", "at", "error", "why"),
    [
        (rank_exit(8), None, UnknownError, "no rank 8"),
        (
            KILLED,
            machine("m9", job=None, state=MachineState.STANDBY),
            StaleError,
            "m9 is not in job gpt, but standby",
        ),
        (KILLED, machine(job="other"), StaleError, "m0 is not in job gpt, but in job other"),
        (
            alert(AlertKind.MANUAL, rank=7, machine="m0"),
            machine(),
            UnknownError,
            "rank 7 of job gpt is not on m0",
        ),
        (KILLED.model_copy(update={"epoch": 4}), machine(), StaleError, "no epoch 4"),
    ],
)
def test_what_is_not_of_the_job_is_refused(
    named: Alert, at: Machine | None, error: type[Exception], why: str
) -> None:
    """Its ranks, its machines, its epochs."""
    with pytest.raises(error, match=why):
        admission_filter.must_be_of_job(named, job(), at)


def test_an_earlier_epoch_is_refused() -> None:
    """By its number, or by the time; a machine's fault outlives the epoch."""
    with pytest.raises(StaleError, match="went on to epoch 3"):
        admission_filter.must_be_newest(KILLED.model_copy(update={"epoch": 2}), job(), NOW)
    hang = alert(AlertKind.HANG, epoch=None, at=NOW - 5)
    with pytest.raises(StaleError, match="before epoch 3"):
        admission_filter.must_be_newest(hang, job(), NOW)
    lost = alert(AlertKind.MACHINE_LOST, machine="m1", epoch=None, at=NOW - 5)
    admission_filter.must_be_newest(lost, job(), NOW)


@pytest.mark.parametrize("kind", AlertKind)
@pytest.mark.parametrize("state", [JobState.STOPPED, JobState.FAILED, JobState.DONE])
def test_an_ended_job_has_no_incidents(kind: AlertKind, state: JobState) -> None:
    """Late reports of its ranks, whatever is seen."""
    why = admission_filter.why_ignored(alert(kind), job(state=state), None)
    assert why == f"job gpt is {state}"


def test_a_manual_alert_with_an_unknown_class_is_refused_with_the_choices() -> None:
    """One clear message."""
    asked = alert(AlertKind.MANUAL, evidence={"class": "earthquake"})
    why = admission_filter.why_ignored(asked, job(), IncidentState.RECOVERED)
    assert "'earthquake'" in why
    assert "job_crash" in why
    known = asked.model_copy(update={"evidence": {"class": "job_crash"}})
    assert admission_filter.why_ignored(known, job(), IncidentState.RECOVERED) == ""


def test_what_the_job_left_behind_counts_no_more() -> None:
    """Between admission and decision its epoch and machines may change; each is reported once."""
    stale, left = KILLED.model_copy(update={"epoch": 2}), KILLED.model_copy(update={"machine": "m9"})
    kept, dropped = admission_filter.of_the_present([stale, KILLED, left, left], job())
    assert kept == (KILLED,)
    assert dropped == (
        "ignored: rank_exit rank 0 on m0 is of epoch 2; the job is in 3",
        "ignored: rank_exit rank 0 on m9 is of machine m9, which job gpt does not use",
    )

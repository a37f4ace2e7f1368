"""Full disks that follow a job from machine to machine."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.models.alert import AlertKind, Incident, IncidentClass, IncidentState
from holdfast.policies.escalate import shortage
from tests.policies.make import NOW, alert, rank_exit

FULL = alert(AlertKind.DISK_FULL, machine="m1")
BEFORE = shortage.Evicted(incident="gpt-1", machine="m1", at=NOW - 3600)


@pytest.mark.parametrize(
    ("kind", "evidence", "expected"),
    [
        ("disk_full", {}, True),
        ("inodes_full", {}, True),
        ("rank_exit", {"cause": "disk_space"}, True),
        ("rank_exit", {"cause": "host_memory"}, False),
        ("mount_readonly", {}, False),
        ("filesystem_error", {}, False),
    ],
)
def test_what_is_about_space(kind: str, evidence: dict[str, Any], expected: bool) -> None:
    """A broken mount or file system is another matter."""
    assert shortage.is_of_space([alert(AlertKind(kind), machine="m1", evidence=evidence)]) is expected
    assert (
        shortage.is_of_space([rank_exit(0), alert(AlertKind(kind), machine="m1", evidence=evidence)])
        is expected
    )


def test_the_first_machine_without_space_goes() -> None:
    """Something else on it may have filled its disk."""
    assert shortage.why_spared(("m1",), [], NOW) == ""


def test_the_next_one_does_not() -> None:
    """The reason names the one before."""
    found = shortage.why_spared(("m4",), [BEFORE], NOW)
    assert "no space was left on m1 either (gpt-1)" in found


def test_the_same_machine_again_goes_again() -> None:
    """It was released, and its disk is full as before: that is no habit of the job."""
    assert shortage.why_spared(("m1",), [BEFORE], NOW) == ""


def test_a_day_later_it_is_forgotten() -> None:
    assert shortage.why_spared(("m4",), [BEFORE], NOW + shortage.WINDOW_S) == ""
    assert shortage.why_spared((), [BEFORE], NOW) == ""


def incident(of: IncidentClass = IncidentClass.STORAGE_FAULT, opened_at: float = NOW - 3600) -> Incident:
    return Incident(
        id="gpt-1",
        job="gpt",
        incident_class=of,
        state=IncidentState.RECOVERED,
        epoch=1,
        alerts=(FULL,),
        detected_at=opened_at,
        opened_at=opened_at,
    )


@pytest.mark.parametrize(
    ("earlier", "submitted_at", "expected"),
    [
        (incident(), NOW - 86_400, True),
        (incident(IncidentClass.MACHINE_FAULT), NOW - 86_400, False),
        (incident(), NOW - 60, False),
        (incident(opened_at=NOW + 1), NOW - 86_400, False),
    ],
)
def test_only_evictions_for_space_since_the_submission_count(
    earlier: Incident, submitted_at: float, expected: bool
) -> None:
    """A lost GPU on a machine whose disk was full as well is no habit of the job; nor is a former submission's."""
    assert shortage.precedes(earlier, incident(opened_at=NOW), submitted_at) is expected

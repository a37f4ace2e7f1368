"""A processor quota that is used up: it explains failures, and a job that it slows is moved."""

from __future__ import annotations

import pytest

from holdfast.models.alert import Alert, AlertKind, Classification, IncidentClass
from holdfast.policies.classify.decision import JobContext
from holdfast.policies.classify.incident_class import classify
from tests.policies.make import NOW, alert, job, rank_exit

CONTEXT = JobContext(job=job(machines=4, per=2), now=NOW)
QUOTA = {"device": "quota", "value": 0.97, "limit": 0.8}


@pytest.mark.parametrize(
    ("beside", "expected"),
    [
        (
            rank_exit(2, error_type="RuntimeError", message="DataLoader timed out"),
            IncidentClass.HOST_PRESSURE,
        ),
        (
            alert(AlertKind.HANG, evidence={"signals": ["silent"], "silent_s": 60}),
            IncidentClass.HOST_PRESSURE,
        ),
        (alert(AlertKind.STRAGGLER, machine="m1", rank=2, evidence={"factor": 3}), IncidentClass.FAIL_SLOW),
    ],
)
def test_what_it_explains(beside: Alert, expected: IncidentClass) -> None:
    """A retry in place would be as slow: a slow job gets another machine."""
    pressure = alert(AlertKind.CPU_PRESSURE, job=None, machine="m1", evidence=QUOTA)
    found = classify([pressure, beside], CONTEXT)
    assert isinstance(found, Classification)
    assert (found.incident_class, found.machine) == (expected, "m1")

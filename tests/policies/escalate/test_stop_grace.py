"""The grace period of ranks that handle SIGTERM."""

from __future__ import annotations

import pytest

from holdfast.models.alert import IncidentClass
from holdfast.models.job import JobSpec
from holdfast.policies.escalate.stop_grace import grace_s


@pytest.mark.parametrize(
    ("given", "why", "given_s"),
    [
        ({"stop_grace_s": 30.0}, None, 30.0),
        ({"stop_grace_s": 30.0}, IncidentClass.CODE_UPDATE, 30.0),
        ({"stop_grace_s": 30.0}, IncidentClass.JOB_CRASH, 0.25),
        ({"stop_grace_s": 30.0, "recovery_grace_s": 5.0}, IncidentClass.JOB_CRASH, 5.0),
        ({"recovery_grace_s": 5.0}, IncidentClass.MACHINE_FAULT, 5.0),
        ({"recovery_grace_s": 0.0}, IncidentClass.MACHINE_FAULT, 0.0),
        ({"recovery_grace_s": 5.0}, None, 2.0),
        ({"stop_grace_s": 0.0}, IncidentClass.JOB_CRASH, 0.0),
        ({"stop_grace_s": 0.0}, None, 0.0),
    ],
)
def test_the_job_file_says_how_long(
    given: dict[str, float], why: IncidentClass | None, given_s: float
) -> None:
    """A stop by a person or an update has time; a recovery is soon over, unless the job wants otherwise."""
    spec = JobSpec.model_validate(
        {"name": "gpt", "script": "t.py", "machines": 1, "ranks_per_machine": 1, **given}
    )
    assert grace_s(spec, why) == given_s

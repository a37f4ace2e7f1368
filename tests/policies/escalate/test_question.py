"""The text of a question to a person: the options, their effects on the job, and the result without an answer."""

from __future__ import annotations

import pytest

from holdfast.models.alert import IncidentClass
from holdfast.models.machine import Scope
from holdfast.policies.escalate.approval import Question, question


@pytest.mark.parametrize(
    ("incident_class", "trains"),
    [
        (IncidentClass.FAIL_SLOW, True),
        (IncidentClass.SILENT_CORRUPTION, True),
        (IncidentClass.JOB_CRASH, False),
        (IncidentClass.JOB_HANG, False),
        (IncidentClass.MACHINE_FAULT, False),
    ],
)
def test_a_question_says_what_each_answer_does(incident_class: IncidentClass, trains: bool) -> None:
    """A job that trains is stopped by a yes, and runs on after a no; one that stands is started after a no."""
    asked = Question(
        whom="m1", scope=Scope.JOB, incident_class=incident_class, deadline_s=3600.0, default="refuse"
    )
    text = question(asked, "evictions need a yes")
    assert text.startswith("evict m1 (scope job): evictions need a yes. Yes: ")
    assert ("which stops the job for a moment" in text) is trains
    assert ("the job runs on as it is" in text) is trains
    assert ("the job is started on the machines that it has" in text) is not trains
    assert text.endswith("No answer within 60 min: refuse")

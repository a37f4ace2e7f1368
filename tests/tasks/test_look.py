"""Notify a person of a failure that repeats, though its incident is recovered and the job trains."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.models.alert import IncidentState
from holdfast.tasks.report import outcome


@pytest.mark.parametrize(
    ("rungs", "state", "name"),
    [
        ([{"look": True}], IncidentState.RECOVERED, "Needs human"),
        ([{"look": False}], IncidentState.RECOVERED, "Recovered"),
        ([], IncidentState.RECOVERED, "Recovered"),
        ([{"look": True}], IncidentState.STOPPED, "Stopped"),
    ],
)
def test_the_run_ends_as_what_people_are_notified_of(
    rungs: list[dict[str, Any]], state: IncidentState, name: str
) -> None:
    case: Any = SimpleNamespace(
        incident=SimpleNamespace(state=state, summary="again"),
        done=lambda kind: [SimpleNamespace(result=each) for each in rungs] if kind == "rung" else [],
    )
    ended = outcome(case)
    assert ended.name == name
    assert ("the job runs on" in str(ended.message)) == (name == "Needs human")

"""A job that a person holds stays held when its incident ends without having touched it."""

from __future__ import annotations

from pathlib import Path

from holdfast.models.job import JobState
from holdfast.testing.play import play
from holdfast.testing.scenario import Scenario


async def test_a_held_job_stays_held_when_a_person_refuses(tmp_path: Path) -> None:
    """Its ranks stand at a step boundary: its state is not running."""
    asks = "approval: {rules: [{incident_class: fail_slow}]}"
    asked = {"kind": "manual", "evidence": {"class": "fail_slow", "by": "ann", "text": "m1 is slow"}}
    held = {
        "name": "held",
        "setup": {"state": "paused", "policy": asks},
        "signals": [asked],
        "answer": "refuse",
    }
    played = await play(Scenario.model_validate(held), tmp_path)
    assert "approve" in played.kinds
    assert "pause" not in played.kinds
    assert played.job.state is JobState.PAUSED


async def test_a_running_job_runs_on_when_a_person_refuses(tmp_path: Path) -> None:
    """The control."""
    asks = "approval: {rules: [{incident_class: fail_slow}]}"
    asked = {"kind": "manual", "evidence": {"class": "fail_slow", "by": "ann", "text": "m1 is slow"}}
    runs = {"name": "runs", "setup": {"policy": asks}, "signals": [asked], "answer": "refuse"}
    played = await play(Scenario.model_validate(runs), tmp_path)
    assert played.job.state is JobState.RUNNING

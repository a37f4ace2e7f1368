"""A run whose incident is closed by another process while it works on it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from holdfast.models.alert import IncidentState
from holdfast.testing.play import play
from holdfast.testing.scenario import Scenario

ASKS = "approval: {rules: [{incident_class: fail_slow}]}"
SLOW = {"kind": "mfu_decline", "evidence": {"value": 0.3, "median": 0.5}}
OTHERS: dict[str, dict[str, Any]] = {
    "a rank dies": {"kind": "rank_exit", "rank": 4, "evidence": {"signal": "SIGKILL"}},
    "a person stops the job": {"request": "jobs/gpt/stop"},
    "the job is done": {"beats": {"for_s": 2, "ended": list(range(8))}},
}


@pytest.mark.parametrize("what", OTHERS)
async def test_its_run_does_not_fail(tmp_path: Path, what: str) -> None:
    """A failed run pages a person, for an incident that is over."""
    ends = OTHERS[what] | {"while_asked": True, "after_s": 60}
    asked = {"name": what, "setup": {"policy": ASKS}, "world": {"outliers": [4, 5]}, "signals": [SLOW, ends]}
    played = await play(Scenario.model_validate(asked), tmp_path)
    assert played.incidents[0].state is IncidentState.DISMISSED
    assert played.errors == []

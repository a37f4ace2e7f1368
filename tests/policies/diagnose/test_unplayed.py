"""Replays that ended before they reached the steps in question."""

from __future__ import annotations

import pytest

from holdfast.models.agent import RankResult
from holdfast.models.alert import IncidentClass
from holdfast.policies.diagnose import unplayed

WELL = RankResult(rank=0, machine="m0", ok=True)
WRONG = RankResult(rank=1, machine="m0", ok=False, detail="loss nan at step 3")
UNLOADED = RankResult(rank=0, machine="m0", ok=False, began=False, unloadable="saved by 4 ranks")
IN_USE = RankResult(
    rank=0,
    machine="m0",
    ok=False,
    began=False,
    detail="OSError: Address already in use",
    error_type="OSError",
)
MOVED = RankResult(
    rank=0, machine="m0", ok=False, detail="FileNotFoundError: x.tmp", error_type="FileNotFoundError"
)
SPARK = RankResult(
    rank=0, machine="m0", ok=False, detail="RuntimeError: CUDA error", error_type="RuntimeError", cause="gpu"
)


@pytest.mark.parametrize(
    ("incident_class", "results", "raised", "why"),
    [
        (IncidentClass.NAN_LOSS, [WELL, WELL], (), ""),
        (IncidentClass.NAN_LOSS, [WELL, WRONG], (), ""),
        (IncidentClass.NAN_LOSS, [UNLOADED, UNLOADED], (), "saved by 4 ranks"),
        (IncidentClass.JOB_CRASH, [UNLOADED], (), "saved by 4 ranks"),
        (IncidentClass.SILENT_CORRUPTION, [IN_USE, WELL], (), "OSError: Address already in use"),
        (IncidentClass.SILENT_CORRUPTION, [IN_USE, WRONG], (), ""),
        (IncidentClass.NAN_LOSS, [IN_USE], ("OSError",), ""),
        (IncidentClass.JOB_CRASH, [IN_USE], (), ""),
        (IncidentClass.SILENT_CORRUPTION, [MOVED, MOVED], (), "FileNotFoundError: x.tmp"),
        (IncidentClass.SILENT_CORRUPTION, [SPARK, MOVED], (), ""),
    ],
)
def test_a_group_that_did_not_come_to_its_steps_is_no_evidence(
    incident_class: IncidentClass, results: list[RankResult], raised: tuple[str, ...], why: str
) -> None:
    """Unless one of its ranks failed as the job did, or the job fell before its first step itself."""
    assert unplayed.reason(results, incident_class, raised) == why

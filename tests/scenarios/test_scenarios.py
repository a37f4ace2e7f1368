"""Every scenario, and what the whole set must cover."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.models.alert import IncidentClass
from holdfast.testing.differences import misses, wrong_actions
from holdfast.testing.play import Played, play
from holdfast.testing.scenario import Scenario, load
from tests.hindsight.replayed import compared

SCENARIOS = load(Path(__file__).parent)

TABLE_1 = (
    "CUDA error",
    "CPU overload",
    "CPU out of memory",
    "insufficient disk space",
    "InfiniBand error",
    "filesystem mount",
    "remote storage error",
    "container error",
    "OS kernel panic",
    "GPU memory error",
    "external service error",
    "GPU unavailable",
    "disk fault",
    "job hang",
    "MFU decline",
    "NaN value",
    "code or data adjustment",
)


def _cases() -> Iterator[Any]:
    """Each scenario once, every sixth replayed as well; the others' replays, which take as long again, are thorough."""
    for index, scenario in enumerate(SCENARIOS):
        replayed = index % 6 == 0
        yield pytest.param(scenario, replayed, id=scenario.name)
        if not replayed:
            yield pytest.param(scenario, True, id=f"{scenario.name}, replayed", marks=pytest.mark.thorough)


@pytest.mark.parametrize(("scenario", "replayed"), list(_cases()))
async def test_scenario(scenario: Scenario, replayed: bool, tmp_path: Path) -> None:
    """The expected class, culprit and actions, and nothing else; from its ledger, the same policy decides the same."""
    played = await play(scenario, tmp_path)
    assert [*wrong_actions(scenario, played), *misses(scenario, played)] == []
    # Decisions under two policies are not those of one.
    for incident in played.incidents if replayed and scenario.one_policy else ():
        found = await compared(tmp_path, incident.id)
        assert [(row.step, row.recorded, row.replayed) for row in found.differences] == []
        assert [row.step for row in found.rows if row.reasons != row.recorded_reasons] == []
        assert found.not_recorded == ()


def test_the_set_is_large_enough() -> None:
    """At least 60, of which at least 20 must not act."""
    assert len(SCENARIOS) >= 60
    assert sum(one.quiet for one in SCENARIOS) >= 20


def test_every_row_of_the_table_of_failures_is_covered() -> None:
    """ByteRobust table 1 (arXiv 2509.16293), each row by a scenario that must act."""
    covered = {row for one in SCENARIOS if not one.quiet for row in one.covers}
    assert set(TABLE_1) <= covered


def test_every_class_is_covered() -> None:
    """No playbook without a scenario."""
    assert {one.expect.incident_class for one in SCENARIOS if not one.quiet} == set(IncidentClass)


async def test_the_judge_sees_what_is_wrong(tmp_path: Path) -> None:
    """The control: a right outcome judged by wrong expectations is wrong in each of them."""
    scenario = next(one for one in SCENARIOS if one.name == "xid-79")
    played = await play(scenario, tmp_path)
    assert_wrong(scenario, played, culprits=("m0",))
    assert_wrong(scenario, played, incident_class=IncidentClass.JOB_CRASH)
    assert_wrong(scenario, played, actions=("pause",))
    quiet = scenario.model_copy(update={"expect": type(scenario.expect)()})
    assert "evicted m2" in wrong_actions(quiet, played)
    assert misses(quiet, played)


def assert_wrong(scenario: Scenario, played: Played, **changes: object) -> None:
    """Judged by other expectations it is wrong."""
    other = scenario.model_copy(update={"expect": scenario.expect.model_copy(update=changes)})
    assert [*wrong_actions(other, played), *misses(other, played)]

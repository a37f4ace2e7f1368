"""The playbook thermal_throttling on a scripted cluster."""

from pathlib import Path

import pytest
from holdfast.testing import Scenario, check, load

from hot_gpus.thermal_throttling import thermal_throttling

SCENARIOS = load(Path(__file__).with_name("thermal_throttling.yaml"))


@pytest.mark.parametrize("scenario", SCENARIOS, ids=str)
def test_scenario(scenario: Scenario, tmp_path: Path) -> None:
    """The expected class, culprits and actions, and nothing else."""
    check(scenario, tmp_path, [thermal_throttling])

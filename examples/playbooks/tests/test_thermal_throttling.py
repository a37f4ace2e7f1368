"""The playbook thermal_throttling on a scripted cluster."""

import importlib
from pathlib import Path

import pytest
from holdfast.tasks.recovery_context import RecoveryContext
from holdfast.testing import Scenario, check, load

from hot_gpus.thermal_throttling import thermal_throttling

SCENARIOS = load(Path(__file__).with_name("thermal_throttling.yaml"))


@pytest.mark.parametrize("scenario", SCENARIOS, ids=str)
def test_scenario(scenario: Scenario, tmp_path: Path) -> None:
    """The expected class, culprits and actions, and nothing else."""
    check(scenario, tmp_path, [thermal_throttling])


def test_the_attempt_after_a_killed_one_lets_the_clocks_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed with lowered clocks: the intent is in the ledger, and the next attempt undoes it."""
    module = importlib.import_module("hot_gpus.thermal_throttling")
    restore, calls = module.restore_clocks, []

    async def killed_once(case: RecoveryContext) -> None:
        calls.append(case.attempt)
        if len(calls) == 1:
            raise RuntimeError("as if it had been killed before this line")
        await restore(case)

    monkeypatch.setattr(module, "restore_clocks", killed_once)
    helped = SCENARIOS[0]
    twice = helped.expect.model_copy(update={"attempts": 2})
    played = check(helped.model_copy(update={"expect": twice}), tmp_path, [thermal_throttling])
    assert calls == [1, 2]
    assert [action.key for action in played.actions][-1] == "restore_clocks:attempt-2"

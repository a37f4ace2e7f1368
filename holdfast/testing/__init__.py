"""A scripted cluster for tests of playbooks: scenarios in, what was done out; in milliseconds, with plain pytest.

A scenario (:mod:`holdfast.testing.scenario`) is YAML: the job and its past, what is true underneath, the signals,
and what must come out. It is played at the gateway's door with the real ledger, policies and steps; agents, driver and
clock are scripted, and Prefect's tasks run as plain functions::

    @pytest.mark.parametrize("scenario", load(Path(__file__).with_name("scenarios.yaml")), ids=str)
    def test_scenario(scenario, tmp_path):
        check(scenario, tmp_path, [my_playbook])
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from holdfast.tasks.playbook import Playbook
from holdfast.testing.differences import misses, wrong_actions
from holdfast.testing.play import Played, play
from holdfast.testing.scenario import Scenario, load

__all__ = ["Played", "Scenario", "check", "load", "play"]


def check(scenario: Scenario, folder: Path, playbooks: Sequence[Playbook] = ()) -> Played:
    """Play ``scenario`` in the empty ``folder``, and return the result.

    Raises:
        AssertionError: something was done that should not have been, or the other way round; the message names it.
    """
    played = asyncio.run(play(scenario, folder, playbooks))
    found = [*wrong_actions(scenario, played), *misses(scenario, played)]
    found += [f"a run failed: {type(error).__name__}: {error}" for error in played.errors if found]
    assert not found, f"{scenario.name}: " + "; ".join(found)
    return played

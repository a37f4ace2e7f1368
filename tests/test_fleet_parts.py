"""The scripted parts of the fleet (benchmarks/fleet) still stand in the places of the agent's own."""

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest

from benchmarks.fleet.memory import ScriptedMemory
from benchmarks.fleet.ranks import ScriptedForks, ScriptedRank
from holdfast.agent.checkpoints.memory import Memory
from holdfast.agent.ranks.forkserver import ForkServer
from holdfast.agent.ranks.processes import Watched


def test_the_agent_has_all_parts_that_are_replaced() -> None:
    """In a process of its own, which they are replaced in."""
    script = "from benchmarks.fleet import agents; from holdfast.settings import Settings; "
    script += "agents.put_in_place(Settings())"
    subprocess.run([sys.executable, "-c", script], check=True, timeout=100)


@pytest.mark.parametrize(
    ("real", "scripted"), [(Watched, ScriptedRank), (ForkServer, ScriptedForks), (Memory, ScriptedMemory)]
)
def test_a_scripted_part_can_be_called_as_the_real_one(real: type, scripted: type) -> None:
    """Every public method, with as many arguments."""
    for name, method in inspect.getmembers(real, callable):
        if name.startswith("_") and name != "__init__":
            continue
        own = getattr(scripted, name, None)
        assert own is not None, f"{scripted.__name__} has no {name}"
        takes = inspect.signature(method).parameters.values()
        wanted = [each.name for each in takes if each.kind is each.POSITIONAL_OR_KEYWORD]
        has = inspect.signature(own).parameters
        assert len(has) >= len(wanted), (
            f"{scripted.__name__}.{name}{inspect.signature(own)}: expected {wanted}"
        )

"""A value that is saved once for all ranks is one that all of them have: none is made up of several ranks' values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from holdfast.storage.checkpoints.save import buffers
from tests.session.conftest import MakeAgent
from tests.session.harness import FakeAgent
from tests.session.kinds.compare import difference
from tests.storage.checkpoints.publish import publish, stock_load
from tests.storage.checkpoints.test_resharding import ranks

pytestmark = [pytest.mark.e2e, pytest.mark.torch]
SCRIPT = Path(__file__).parent / "scripts" / "drifting.py"
BACK = "tests.session.scripts.drifting:back"


@pytest.mark.thorough
def test_ranks_that_drift_apart_get_their_own_back_from_the_store(
    make_agent: MakeAgent, tmp_path: Path
) -> None:
    """Buffers and large tensors that were equal at the first save and are not any more; also after a restart."""
    agent = make_agent(2)
    agent.start(SCRIPT, [8, tmp_path])
    assert agent.join() == [0, 0], agent.output()
    first = agent.common_step()
    assert first > 4, agent.output()
    stored = publish(agent.shards, first, tmp_path / "stored")
    assert outcomes(2, tmp_path, stored, first) == ["", ""]
    # Who has no place of its own takes the whole of another rank's, and stock torch finds one rank's.
    assert outcomes(3, tmp_path, stored, first) == ["", "", ""]
    expected = torch.load(tmp_path / f"0-{first}.pt")["model"]
    assert not difference(expected, {name: stock_load(stored)["model"][name] for name in expected})

    before = plans(agent)
    agent.start(SCRIPT, [first + 4, tmp_path], lambda rank: (first, agent.shard(rank, first)))
    assert agent.join() == [0, 0], agent.output()
    again = agent.common_step()
    assert again > first, agent.output()
    assert plans(agent) == before, "the plan of before was not kept"
    stored = publish(agent.shards, again, tmp_path / "again")
    assert outcomes(2, tmp_path, stored, again) == ["", ""]


def outcomes(world_size: int, folder: Path, stored: Path, step: int) -> list[Any]:
    return ranks(world_size, BACK, folder=folder, stored=stored, step=step, writers=2)


def plans(agent: FakeAgent) -> set[str]:
    """By which the newest save was made."""
    held = buffers.inventory(agent.shards)
    return {each.plan for _, each in held if each.step == max(header.step for _, header in held)}

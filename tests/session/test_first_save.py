"""How often the first save waits for all ranks: a recovery ends with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.session.conftest import MakeAgent

pytestmark = [pytest.mark.e2e, pytest.mark.torch]
SCRIPT = Path(__file__).parent / "scripts" / "first_save.py"


@pytest.mark.parametrize(("apart", "waits"), [([], 1), (["apart"], 4)])
def test_after_a_restore_ranks_agree_once_where_they_are_alike(
    make_agent: MakeAgent, apart: list[str], waits: int
) -> None:
    """Otherwise they find out what differs first. Saves by the plan of the epoch before are common from the first."""
    agent = make_agent(2)
    agent.start(SCRIPT, ["3", *apart])
    assert agent.join(60) == [0, 0], agent.output()
    agent.start(SCRIPT, ["6", *apart], lambda rank: (3, agent.shard(rank, 3)))
    assert agent.join(60) == [0, 0], agent.output()
    lines = [line for line in agent.output().splitlines() if line.startswith("rank ")]
    assert sorted(lines) == [f"rank {rank}: waits {waits}, common 3" for rank in range(2)], lines

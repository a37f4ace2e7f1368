"""A fake agent per test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.session.harness import FakeAgent, patience

MakeAgent = Callable[..., FakeAgent]


@pytest.fixture
def make_agent(tmp_path: Path) -> Iterator[MakeAgent]:
    """Makes fake agents and stops them after the test."""
    made: list[FakeAgent] = []

    def make(world_size: int = 1, **options: bool) -> FakeAgent:
        folder = tmp_path / f"agent{len(made)}"
        folder.mkdir()
        made.append(FakeAgent(folder, world_size, **options))
        return made[-1]

    with patience():
        yield make
        for agent in made:
            agent.close()

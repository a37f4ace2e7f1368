"""Waits of a rank for its peer's copy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from holdfast.agent.wire import Control
from holdfast.session.boundary import Boundary

SHARD = Path("r0-a.shard")


class Agent:
    """Hears what a rank reports."""

    def __init__(self) -> None:
        self.received: list[tuple[str, int]] = []

    def send(self, kind: str, **content: Any) -> bool:
        self.received.append((kind, content["step"]))
        return True


def test_the_copy_of_a_step_that_is_saved_again_is_not_that_of_the_first_save(tmp_path: Path) -> None:
    """Not all ranks share the first one, so the peer is to get the second, and the rank waits for that."""
    page, agent = Control(tmp_path / "control", create=True), Agent()
    reporter: Any = agent
    boundary = Boundary(page, reporter, has_peer=True)
    boundary.saved(7, SHARD, 1)
    assert not boundary.has_copy()
    page.replicated_step = 7
    assert boundary.has_copy()
    boundary.saved(7, SHARD, 1)
    assert page.replicated_step < 7, "the agent passes over what its peer has"
    assert not boundary.has_copy()
    page.replicated_step = 7
    assert boundary.has_copy()
    assert boundary.copied
    assert agent.received == [("saved", 7), ("saved", 7)]

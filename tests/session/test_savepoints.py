"""State of a role's replicas: saved at the trainer's step, given back with it, also to replicas that started again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import holdfast
from holdfast import roles
from holdfast.errors import CheckpointError
from tests.session.conftest import MakeAgent
from tests.session.small import session_of, train, training

pytestmark = pytest.mark.torch


class Servers:
    """Replicas of the role ``server``: each holds a dictionary, or nothing; some are away."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.held: dict[str, dict[str, Any]] = {}
        self._folder = folder
        monkeypatch.setenv(roles.ENV_FOLDER, str(folder))

    def show(self, *indexes: int) -> None:
        """Have these be known."""
        members = [{"role": "server", "index": each, "address": f"h:{each + 1}"} for each in indexes]
        roles.written(self._folder / roles.MEMBERS, {"members": members})

    def fetch(self, index: int, address: str) -> dict[str, Any] | None:
        assert address == f"h:{index + 1}"
        return dict(self.held[address]) if address in self.held else None

    def fill(self, _: int, address: str, state: dict[str, Any]) -> None:
        self.held[address] = dict(state)

    def savepoints(self, replicas: int = 2, timeout_s: float = 0.0) -> holdfast.Savepoints:
        return holdfast.Savepoints("server", self.fetch, self.fill, replicas=replicas, timeout_s=timeout_s)


@pytest.fixture
def servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Servers:
    """Two, which hold something."""
    made = Servers(tmp_path / "roles", monkeypatch)
    made.show(0, 1)
    made.held = {
        "h:1": {"sum": torch.ones(3), "pushed": 4},
        "h:2": {"sum": torch.full((2,), 2.0), "pushed": 7},
    }
    return made


def test_what_servers_hold_is_restored_with_the_step(make_agent: MakeAgent, servers: Servers) -> None:
    """They went on after it: the trainer that goes back takes them along."""
    agent = make_agent()
    state = training() | {"servers": servers.savepoints().part}
    session = session_of(agent)
    session.restore(state)
    for step in (1, 2):
        train(state)
        servers.held["h:1"] = {"sum": torch.full((3,), float(step)), "pushed": 4 + step}
        session.step(step)
        session.checkpoint(state)
        assert session.flush()
    servers.held["h:1"] = {"sum": torch.full((3,), 99.0), "pushed": 99}

    fresh = training() | {"servers": servers.savepoints().part}
    assert session_of(agent, (2, agent.shard(0, 2))).restore(fresh) == 2
    assert servers.held["h:1"]["pushed"] == 6
    assert torch.equal(servers.held["h:1"]["sum"], torch.full((3,), 2.0))
    assert servers.held["h:2"]["pushed"] == 7


def test_a_server_that_started_again_is_filled_with_the_newest_savepoint(servers: Servers) -> None:
    savepoints = servers.savepoints()
    savepoints.state_dict()
    assert not servers.savepoints().refill(0)
    del servers.held["h:2"]
    assert savepoints.refill(1)
    assert servers.held["h:2"]["pushed"] == 7
    del servers.held["h:2"]
    assert savepoints.state_dict()["1"]["pushed"] == 7
    assert servers.held["h:2"]["pushed"] == 7


def test_a_step_without_the_state_of_a_server_is_not_saved(make_agent: MakeAgent, servers: Servers) -> None:
    """Training goes on; a later step is saved when the server is there again."""
    agent = make_agent()
    state = training() | {"servers": servers.savepoints().part}
    session = session_of(agent)
    session.restore(state)
    for step, known in enumerate([(0, 1), (0,), (0, 1)], 1):
        servers.show(*known)
        session.step(step)
        session.checkpoint(state)
        assert session.flush()
    assert session.counts.failed == 1
    assert session.counts.common == 2


def test_a_step_without_a_server_that_was_never_reached_is_not_saved(
    make_agent: MakeAgent, servers: Servers
) -> None:
    """It may hold something; the restore before it, which only looks, needs no server."""
    servers.show(0)
    agent = make_agent()
    state = training() | {"servers": servers.savepoints().part}
    session = session_of(agent)
    assert session.restore(state) == 0
    for step, known in enumerate([(0,), (0,), (0, 1)], 1):
        servers.show(*known)
        session.step(step)
        session.checkpoint(state)
        assert session.flush()
    assert session.counts.failed == 2
    assert session.counts.common == 1


def test_a_server_that_holds_nothing_yet_fails_no_save(servers: Servers) -> None:
    servers.held.clear()
    savepoints = servers.savepoints()
    assert savepoints.state_dict() == {"0": None, "1": None}
    savepoints.load_state_dict({"0": None, "1": None})
    assert not servers.held


def test_ranks_share_the_servers_and_another_number_of_ranks_does_too(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    saved = []
    for rank in range(2):
        monkeypatch.setenv("RANK", str(rank))
        saved.append(servers.savepoints().state_dict())
    assert [list(each) for each in saved] == [["0"], ["1"]]
    servers.held.clear()
    monkeypatch.setenv("WORLD_SIZE", "1")
    monkeypatch.setenv("RANK", "0")
    part = servers.savepoints().part
    assert part.merge is not None
    assert part.split is not None
    part.value.load_state_dict(part.split(part.merge(saved), 0, 1))
    assert [servers.held[each]["pushed"] for each in ("h:1", "h:2")] == [4, 7]
    three = [part.split(part.merge(saved), rank, 3) for rank in range(3)]
    assert [list(each) for each in three] == [["0"], ["1"], []]


def test_what_cannot_be_given_back_is_refused(servers: Servers) -> None:
    """A server that does not come, and a checkpoint of more or fewer servers: parameters would be missing."""
    held = servers.savepoints().state_dict()
    servers.show(0)
    with pytest.raises(CheckpointError, match="replica 1 could not be given its state within 0 s"):
        servers.savepoints().load_state_dict(held)
    with pytest.raises(CheckpointError, match="replica 1, and the script asks for 1"):
        servers.savepoints(replicas=1).load_state_dict(held)
    with pytest.raises(CheckpointError, match="no state of replica 2, and the script asks for 3"):
        servers.savepoints(replicas=3).load_state_dict(held)
    with pytest.raises(ValueError, match="expected 1 or more"):
        servers.savepoints(replicas=0)

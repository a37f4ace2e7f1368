"""What a save copies and when, whatever changes the state meanwhile."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

from holdfast.agent import wire
from holdfast.session import boundary
from holdfast.session.saver import Counts
from holdfast.session.state import StateTree
from holdfast.storage.checkpoints import buffers
from holdfast.storage.checkpoints.transfer import Transfer
from tests.session.conftest import MakeAgent
from tests.session.small import contents, session_of, train, training

pytestmark = pytest.mark.torch


def hold_saves(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Saves copy nothing before the event is set."""
    go = threading.Event()
    whole = Transfer.run

    def run(self: Transfer, reached: Any) -> None:
        assert go.wait(20)
        whole(self, reached)

    monkeypatch.setattr(Transfer, "run", run)
    return go


def test_a_step_that_is_not_finite_is_not_saved(make_agent: MakeAgent) -> None:
    """The state of a bad step must not replace a good one."""
    agent = make_agent()
    session, state = session_of(agent), training()
    session.restore(state)
    for step, loss in ((1, 1.0), (2, float("nan")), (3, 1.0)):
        session.step(step, loss=loss)
        session.checkpoint(state)
    assert session.flush()
    assert [each.step for _, each in buffers.inventory(agent.shards)] == [1, 3]


def test_a_replaced_tensor_and_a_new_key_are_saved(make_agent: MakeAgent) -> None:
    """What is kept between saves is dropped when the state's tensors or names change."""
    agent = make_agent()
    session, state = session_of(agent), training()
    session.restore(state)
    for step in range(1, 4):
        if step == 2:
            state["model"][0].weight.data = torch.full((4, 3), 7.0)
        if step == 3:
            state["counter"].note = "x"
            state["model"].register_buffer("more", torch.ones(3))
        session.step(step)
        session.checkpoint(state)
    assert session.flush()
    fresh = training()
    fresh["model"].register_buffer("more", torch.zeros(3))
    assert session_of(agent, (3, agent.shard(0, 3))).restore(fresh) == 3
    assert torch.equal(fresh["model"][0].weight, torch.full((4, 3), 7.0))
    assert torch.equal(fresh["model"].more, torch.ones(3))


def test_the_bytes_are_those_of_the_boundary(make_agent: MakeAgent, monkeypatch: pytest.MonkeyPatch) -> None:
    """Forward passes change running statistics and the optimizer changes parameters before the copy is done."""
    agent = make_agent()
    go = hold_saves(monkeypatch)
    session, state = session_of(agent), training()
    session.restore(state)
    train(state)
    expected = {
        name: each.clone() if isinstance(each, torch.Tensor) else each
        for name, each in StateTree(state).flat().items()
    }
    session.step(1)
    session.checkpoint(state)
    thread = threading.Timer(0.2, go.set)
    thread.start()
    for _ in range(3):  # each forward changes the buffers; the first optimizer step has to wait
        train(state)
    assert go.is_set()
    assert session.flush()
    saved = contents(agent.shard(0, 1))
    assert {name for name in saved if not name.startswith("rng/")} == expected.keys()
    assert all(
        torch.equal(saved[name], each) if isinstance(each, torch.Tensor) else saved[name] == each
        for name, each in expected.items()
    )
    assert not torch.equal(saved["model.1.running_mean"], state["model"][1].running_mean)
    assert not torch.equal(saved["model.0.weight"], state["model"][0].weight)


def test_a_save_is_skipped_while_the_one_before_is_under_way(
    make_agent: MakeAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing queues up: what the step leaves no time for is left out and counted, and training goes on."""
    agent = make_agent(replicate=False)
    monkeypatch.setattr(boundary, "REPLICATION_S", 1000.0)
    session, state = session_of(agent, **{wire.ENV_PATIENCE: "0"}), training()
    session.restore(state)
    for step in range(1, 6):
        train(state)
        session.step(step)
        session.checkpoint(state)
        assert session._saver._done is not None
        session._saver._done.result()
        if step == 4:  # now the peer has step 1
            agent.controls[0].replicated_step = 1
    assert session.counts == Counts(saved=2, skipped=3)
    assert [each.step for _, each in buffers.inventory(agent.shards)] == [1, 5]
    agent.wait_for(lambda: len(agent.of("skipped")) == 3)
    assert agent.of("skipped")[-1]["skipped"] == 3


def test_a_change_without_an_optimizer_is_noticed(
    make_agent: MakeAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A parameter that changes in place during the copy: that save does not count, later ones copy it first."""
    agent = make_agent()
    go = hold_saves(monkeypatch)
    session, state = session_of(agent), training()
    session.restore(state)
    for step in range(1, 4):
        go.clear()
        session.step(step)
        session.checkpoint(state)
        before = state["model"][0].weight.detach().clone()
        with torch.no_grad():
            state["model"][0].weight.add_(1.0)
        go.set()
        assert session.flush()
    assert session.counts == Counts(saved=2, torn=1)
    assert torch.equal(contents(agent.shard(0, 3))["model.0.weight"], before)


def test_wait_comes_before_other_changes(make_agent: MakeAgent, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the explicit wait everything may be copied later, whatever changes it, and however."""
    agent = make_agent()
    go = hold_saves(monkeypatch)
    session, state = session_of(agent), training()
    session.restore(state)
    session.step(1)
    session.checkpoint(state, overlap="all")
    before = state["model"][0].weight.detach().clone()
    threading.Timer(0.1, go.set).start()
    session.wait()
    state["model"][0].weight.data.add_(1.0)
    assert session.flush()
    assert torch.equal(contents(agent.shard(0, 1))["model.0.weight"], before)

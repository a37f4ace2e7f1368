"""The Session's calls, in this process."""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from holdfast.agent import wire
from holdfast.errors import CheckpointError, SettingsError
from holdfast.session import Session, boundary
from holdfast.session.context import Context
from holdfast.storage.checkpoints import buffers
from tests.session.conftest import MakeAgent
from tests.session.harness import FakeAgent

pytestmark = pytest.mark.torch


class Counter:
    """A small Stateful."""

    def __init__(self) -> None:
        self.value = 0

    def state_dict(self) -> dict[str, Any]:
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.value = state["value"]


def training() -> dict[str, Any]:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    return {
        "model": model,
        "optimizer": optimizer,
        "scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 2),
        "counter": Counter(),
    }


def train(state: dict[str, Any]) -> float:
    loss = (state["model"](torch.randn(8, 3)) * random.random() * np.random.rand()).square().mean()
    state["optimizer"].zero_grad()
    loss.backward()
    state["optimizer"].step()
    state["scheduler"].step()
    state["counter"].value += 1
    return loss.item()


def run(session: Session, state: dict[str, Any], steps: int) -> list[float]:
    losses = []
    for step in range(session.restore(state) + 1, steps + 1):
        losses.append(train(state))
        session.step(step, loss=losses[-1])
        session.checkpoint(state)
    return losses


def seed(number: int) -> None:
    random.seed(number)
    np.random.seed(number)
    torch.manual_seed(number)


def session_of(agent: FakeAgent, restore: tuple[int, Path] | None = None, **extra: str) -> Session:
    agent.epoch += 1
    return Session(agent.environ(0, restore, **extra))


def test_without_an_agent_every_call_is_a_no_op(tmp_path: Path) -> None:
    """Plain python: nothing is restored, saved, sent or timed out."""
    session = Session({})
    state = {"anything": object()}
    assert session.restore(state) == 0
    with session.phase("eval"):
        pass
    session.step(1, loss=float("nan"))
    session.checkpoint(state)
    assert list(tmp_path.iterdir()) == []


def test_a_wrong_environment_is_one_clear_error() -> None:
    """An agent's environment without its parts names what is missing."""
    with pytest.raises(SettingsError, match=wire.ENV_JOB):
        Context.read({wire.ENV_SOCKET: "/sock"})


def test_restored_training_goes_on_exactly(make_agent: MakeAgent) -> None:
    """Weights, optimizer, schedule, buffers and all random states continue as if nothing had happened."""
    agent = make_agent()
    seed(1)
    whole = run(session_of(agent), training(), 9)
    seed(1)
    first = run(session_of(agent), training(), 5)
    shard = agent.shard(0, 5)
    seed(99)
    state = training()
    rest = run(session_of(agent, (5, shard)), state, 9)
    assert first + rest == whole
    assert state["counter"].value == 9
    assert state["optimizer"].param_groups[0]["lr"] == pytest.approx(0.1 * 0.1**4)


def test_steps_are_reported_with_their_numbers(make_agent: MakeAgent) -> None:
    """A step's datagram has time, duration, numbers and phases; what JSON lacks travels as text."""
    agent = make_agent()
    session = session_of(agent)
    with session.phase("forward"):
        pass
    with session.phase("eval"):
        pass
    session.step(1, loss=torch.tensor(2.5), grad_norm=float("inf"))
    session.step(2, loss=float("nan"))
    agent.wait_for(lambda: len(agent.of("step")) == 2)
    one, two = agent.of("step")
    assert (one["step"], one["loss"], one["grad_norm"]) == (1, 2.5, "inf")
    assert one["phases"].keys() == {"forward", "eval"}
    assert abs(one["at"] - time.time()) < 30
    assert (two["loss"], two["grad_norm"], two["phases"]) == ("nan", None, {})
    assert [each["name"] for each in agent.of("activity")] == ["eval", ""]


def test_a_step_that_is_not_finite_is_not_saved(make_agent: MakeAgent) -> None:
    """The state of a bad step must not replace a good one."""
    agent = make_agent()
    session, state = session_of(agent), training()
    session.restore(state)
    for step, loss in ((1, 1.0), (2, float("nan")), (3, 1.0)):
        session.step(step, loss=loss)
        session.checkpoint(state)
    assert [each.step for _, each in buffers.inventory(agent.shards)] == [1, 3]


def test_a_missing_agent_costs_no_step(make_agent: MakeAgent, monkeypatch: pytest.MonkeyPatch) -> None:
    """With nobody at the socket training goes on, waiting for the copy only so long, and less the next time."""
    agent = make_agent(replicate=False)
    monkeypatch.setattr(boundary, "REPLICATION_S", 0.2)
    session = session_of(agent)
    began = time.monotonic()
    run(session, training(), 4)
    assert time.monotonic() - began < 5
    assert session._boundary.late_copies == 4
    assert agent.shard(0, 4)


def test_resuming_forgets_shards_beyond_the_restored_step(make_agent: MakeAgent) -> None:
    """The restored shard stays until the new epoch has a newer one."""
    agent = make_agent()
    run(session_of(agent), training(), 6)
    shard = agent.shard(0, 5)
    session, state = session_of(agent, (5, shard)), training()
    session.restore(state)
    assert [each.step for _, each in buffers.inventory(agent.shards)] == [5]
    session.step(6)
    session.checkpoint(state)
    assert [(each.step, each.epoch) for _, each in buffers.inventory(agent.shards)] == [(5, 1), (6, 2)]


def test_a_torn_shard_is_refused_by_name(make_agent: MakeAgent) -> None:
    """Restore says which rank's shard is bad."""
    agent = make_agent()
    run(session_of(agent), training(), 3)
    shard = agent.shard(0, 3)
    data = bytearray(shard.read_bytes())
    data[-200] ^= 1
    shard.write_bytes(data)
    with pytest.raises(CheckpointError, match="rank 0 at step 3"):
        session_of(agent, (3, shard)).restore(training())


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
    fresh = training()
    fresh["model"].register_buffer("more", torch.zeros(3))
    assert session_of(agent, (3, agent.shard(0, 3))).restore(fresh) == 3
    assert torch.equal(fresh["model"][0].weight, torch.full((4, 3), 7.0))
    assert torch.equal(fresh["model"].more, torch.ones(3))


def test_unknown_state_is_refused(make_agent: MakeAgent) -> None:
    """An object without state_dict, or an optimizer without its model, is named."""
    agent = make_agent()
    session = session_of(agent)
    session.step(1)
    with pytest.raises(CheckpointError, match=r"state\['x'\] is a int"):
        session.checkpoint({"x": 3})
    with pytest.raises(CheckpointError, match=r"state\['optimizer'\]: no module"):
        session.checkpoint({"optimizer": training()["optimizer"]})


def test_hold_waits_after_the_save_until_released(make_agent: MakeAgent) -> None:
    """The held step is saved, the rank says so, and goes on when it is let go."""
    agent = make_agent()
    session, state = session_of(agent), training()
    agent.controls[0].hold_at_step = 3
    thread = threading.Thread(target=run, args=(session, state, 5))
    thread.start()
    agent.wait_for(lambda: agent.of("held"))
    assert agent.of("held")[0]["step"] == 3
    assert agent.shard(0, 3)
    assert [each["step"] for each in agent.of("step")] == [1, 2, 3]
    agent.controls[0].hold_at_step = wire.NO_HOLD
    thread.join(20)
    agent.wait_for(lambda: len(agent.of("step")) == 5)
    assert len(agent.of("released")) == 1


def test_a_replay_restores_runs_and_saves_nothing(make_agent: MakeAgent) -> None:
    """After its steps a replay reports and ends with status 0; shards are as before."""
    agent = make_agent()
    run(session_of(agent), training(), 5)
    before = {path: path.read_bytes() for path, _ in buffers.inventory(agent.shards)}
    shard = agent.shard(0, 4)
    state = training()
    session = session_of(agent, (4, shard), **{wire.ENV_REPLAY_STEPS: "3"})
    with pytest.raises(SystemExit) as ended:
        run(session, state, 100)
    assert ended.value.code == 0
    assert state["counter"].value == 7
    agent.wait_for(lambda: agent.of("replayed"))
    assert agent.of("replayed")[0]["ok"] is True
    assert {path: path.read_bytes() for path, _ in buffers.inventory(agent.shards)} == before


def test_a_replay_that_is_not_finite_says_where(make_agent: MakeAgent) -> None:
    """The outcome names the number and the step."""
    agent = make_agent()
    session = session_of(agent, **{wire.ENV_REPLAY_STEPS: "3"})
    with pytest.raises(SystemExit):
        session.step(1, loss=1.0, grad_norm=float("nan"))
    agent.wait_for(lambda: agent.of("replayed"))
    assert agent.of("replayed")[0]["ok"] is False
    assert agent.of("replayed")[0]["detail"] == "grad_norm nan at step 1"


def test_a_replay_ends_without_checkpoint_calls(make_agent: MakeAgent) -> None:
    """A script that rarely calls checkpoint still ends its replay and still can be held."""
    agent = make_agent()
    session = session_of(agent, **{wire.ENV_REPLAY_STEPS: "3"})
    session.step(1)
    session.step(2)
    with pytest.raises(SystemExit):
        session.step(3)


def test_a_step_costs_at_most_50_microseconds(make_agent: MakeAgent) -> None:
    """Reporting must not slow training down (median, two phases)."""
    session = session_of(make_agent())
    costs = []
    for step in range(1, 1001):
        with session.phase("forward"):
            pass
        with session.phase("backward"):
            pass
        began = time.perf_counter()
        session.step(step, loss=3.25, grad_norm=0.5)
        costs.append(time.perf_counter() - began)
    assert sorted(costs)[500] < 50e-6

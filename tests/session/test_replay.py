"""A replay restores, runs its steps, reports their results, and saves nothing."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from holdfast.agent import wire
from holdfast.storage.checkpoints.save import buffers
from tests.session.conftest import MakeAgent
from tests.session.harness import FakeAgent
from tests.session.small import run, seed, session_of, training

pytestmark = pytest.mark.torch


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


def replayed(agent: FakeAgent, state: dict[str, Any], *, flip: bool = False) -> dict[str, Any]:
    """The outcome of a replay of three steps from fixed weights; with ``flip`` one gradient has one wrong bit."""
    seed(7)
    session = session_of(agent, **{wire.ENV_REPLAY_STEPS: "3"})
    for module in state["model"].modules():
        if hasattr(module, "reset_parameters"):
            module.reset_parameters()
    if flip:

        def wrong(gradient: torch.Tensor) -> torch.Tensor:
            off = gradient.clone()
            off.view(-1).view(torch.int32)[0] ^= 1
            return off

        state["model"][3].weight.register_hook(wrong)
    with pytest.raises(SystemExit):
        run(session, state, 100)
    before = len(agent.of("replayed"))
    agent.wait_for(lambda: agent.of("replayed"))
    assert before <= 1
    found: dict[str, Any] = agent.of("replayed")[-1]
    return found


def test_a_replay_reports_what_it_computed_to_the_last_bit(make_agent: MakeAgent) -> None:
    """Equal twice; one bit of one gradient, finite, shows in the gradients of its step.

    Its loss is right, and Adam may even absorb it: parameters alone would not show it.
    """
    once, again, wrong = (
        replayed(make_agent(), training(), flip=flip)["digests"] for flip in (False, False, True)
    )
    assert [each["step"] for each in once] == [1, 2, 3]
    assert once == again
    assert wrong[0]["loss"] == once[0]["loss"]
    assert wrong[0]["gradients"] != once[0]["gradients"]
    assert all(each["parameters"] for each in once)
    assert float.fromhex(once[0]["loss"]) > 0


def test_a_session_that_does_not_replay_digests_nothing(make_agent: MakeAgent) -> None:
    """Training pays nothing for it."""
    agent = make_agent()
    session = session_of(agent)
    assert session._digests is None

"""A replay restores, runs its steps, tells how they went, and saves nothing."""

from __future__ import annotations

import pytest

from holdfast.agent import wire
from holdfast.storage.checkpoints import buffers
from tests.session.conftest import MakeAgent
from tests.session.small import run, session_of, training

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

"""The Session's calls, in this process: what it reports, and what it does without an agent."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from holdfast.agent import wire
from holdfast.errors import CheckpointError, SettingsError
from holdfast.session import Session, boundary
from holdfast.session.rank_context import RankContext
from tests.session.conftest import MakeAgent
from tests.session.small import run, session_of, train, training

pytestmark = pytest.mark.torch


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
        RankContext.read({wire.ENV_SOCKET: "/sock"})


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


@pytest.mark.parametrize(
    ("step", "numbers", "why"),
    [
        (0, {}, r"Session\.step\(0\): expected 1 to .* Steps count from 1"),
        (-1, {}, r"Session\.step\(-1\): expected 1"),
        ("1", {}, r"Session\.step\('1'\): expected an integer"),
        (1.0, {}, r"Session\.step\(1\.0\): expected an integer"),
        (1, {"loss": "low"}, r"Session\.step\(1, loss='low'\): expected one number"),
        (1, {"grad_norm": torch.zeros(2)}, r"Session\.step\(1, grad_norm=tensor\(\[0\., 0\.\]\)\)"),
        (1, {"mfu": [0.5]}, r"Session\.step\(1, mfu=\[0\.5\]\)"),
    ],
)
def test_a_wrong_number_is_one_clear_error(
    make_agent: MakeAgent, step: Any, numbers: dict[str, Any], why: str
) -> None:
    """It names the argument, its value and what was expected; nothing is reported."""
    agent = make_agent()
    with pytest.raises((TypeError, ValueError), match=why):
        session_of(agent).step(step, **numbers)
    assert not agent.of("step")


class OnBrokenDevice:
    """A loss whose copy to the host shows that a kernel failed."""

    def __float__(self) -> float:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")


def test_a_device_that_fails_at_the_loss_is_no_wrong_number(make_agent: MakeAgent) -> None:
    """The error that names the cause is the one that ends the script, and is in its log."""
    session = session_of(make_agent())
    with pytest.raises(RuntimeError, match="illegal memory access"):
        session.step(1, loss=OnBrokenDevice())


def test_a_step_reports_how_long_a_checkpoint_stalled_it(make_agent: MakeAgent) -> None:
    """The next step's report has the time that training stood still; the first has none."""
    agent = make_agent()
    session, state = session_of(agent), training()
    session.restore(state)
    for step in (1, 2):
        session.step(step)
        session.checkpoint(state)
        session.wait()
    agent.wait_for(lambda: len(agent.of("step")) == 2)
    one, two = agent.of("step")
    assert "checkpoint" not in one["phases"]
    assert 0 < two["phases"]["checkpoint"] <= two["s"]


def test_a_missing_agent_costs_no_step(make_agent: MakeAgent, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an agent at the socket training goes on, waiting for the copy only so long, and less the next time."""
    agent = make_agent(replicate=False)
    monkeypatch.setattr(boundary, "REPLICATION_S", 0.2)
    session = session_of(agent)
    run(session, training(), 4)
    assert session._boundary.late_copies == session.counts.saved == 4
    assert session._boundary.longest_s == boundary.LATE_S
    assert agent.shard(0, 4)


def test_unknown_state_is_refused(make_agent: MakeAgent) -> None:
    """An object without state_dict, or an optimizer without its model, is named."""
    agent = make_agent()
    session = session_of(agent)
    with pytest.raises(
        CheckpointError, match=r"state\['x'\] is of type int.*Put plain values into an object"
    ):
        session.restore({"x": 3})
    with pytest.raises(CheckpointError, match=r"state\['optimizer'\]: no module"):
        session.restore({"optimizer": training()["optimizer"]})
    with pytest.raises(
        CheckpointError, match="the state is of type Sequential: expected a dictionary of names"
    ):
        session.restore(training()["model"])
    with pytest.raises(CheckpointError, match=r"state\[1\]: the name is of type int"):
        session.restore({1: training()["model"]})  # type: ignore[dict-item]


def test_a_state_dictionary_in_place_of_its_module_is_refused(make_agent: MakeAgent) -> None:
    """As one gives it to torch.save(); and an object that could not be loaded again."""
    session, state = session_of(make_agent()), training()
    for name in ("model", "optimizer"):
        with pytest.raises(CheckpointError, match=rf"state\['{name}'\].*itself, not what its state_dict\(\)"):
            session.restore({name: state[name].state_dict()})

    class OneWay:
        def state_dict(self) -> dict[str, int]:
            return {}

    with pytest.raises(CheckpointError, match=r"state\['x'\] is of type OneWay.*no load_state_dict\(\)"):
        session.restore({"x": OneWay()})


def test_hold_waits_after_the_save_until_released(make_agent: MakeAgent) -> None:
    """The held step is saved, the rank reports it, and goes on when it is let go."""
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
    thread.join(60)
    agent.wait_for(lambda: len(agent.of("step")) == 5)
    assert len(agent.of("released")) == 1


def test_a_script_that_saves_now_and_then_is_held_after_a_save_that_it_is_about_to_make(
    make_agent: MakeAgent,
) -> None:
    """Steps 4, 9, 14: at step 14 it is held in checkpoint(), and at 17, where no save is to come, in step()."""
    agent = make_agent()
    session, state = session_of(agent), training()

    def script() -> None:
        session.restore(state)
        for step in range(1, 20):
            train(state)
            session.step(step)
            if step % 5 == 4:
                session.checkpoint(state)

    agent.controls[0].hold_at_step = 14
    thread = threading.Thread(target=script)
    thread.start()
    agent.wait_for(lambda: agent.of("held"))
    assert agent.of("held")[-1]["step"] == 14
    assert agent.shard(0, 14)
    assert [tuple(each.get("saves", ())) for each in agent.of("step")[3:]] == [
        *[()],
        *[(4, 4)] * 5,
        *[(9, 5)] * 5,
    ]
    agent.controls[0].hold_at_step = 17
    agent.wait_for(lambda: agent.of("held")[-1]["step"] == 17)
    agent.controls[0].hold_at_step = wire.NO_HOLD
    thread.join(60)
    assert not thread.is_alive()


def test_a_step_costs_at_most_50_microseconds(make_agent: MakeAgent) -> None:
    """Reporting must not slow training down (median, two phases): the thread's own time, whatever else runs here."""
    session = session_of(make_agent())
    assert session._reporter is not None
    session._reporter._sender._socket.setblocking(False)  # as ever: what the agent does not take is given up
    costs = []
    for step in range(1, 1001):
        with session.phase("forward"):
            pass
        with session.phase("backward"):
            pass
        began = time.thread_time()
        session.step(step, loss=3.25, grad_norm=0.5)
        costs.append(time.thread_time() - began)
    assert sorted(costs)[500] < 50e-6

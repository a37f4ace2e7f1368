"""The results of a restore, its refusals, and the memory that it asks for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributed.checkpoint.metadata import Metadata

from holdfast.errors import CheckpointError, ScriptRefusedError
from holdfast.session import rng
from holdfast.session.known import Known
from holdfast.session.optimizers import OptimizerPart
from holdfast.session.part import Part
from holdfast.session.state import StateTree
from holdfast.storage.checkpoints.save import buffers, room
from tests.session.conftest import MakeAgent
from tests.session.small import Counter, run, seed, session_of, training

pytestmark = pytest.mark.torch


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
    assert session.flush()
    assert [(each.step, each.epoch) for _, each in buffers.inventory(agent.shards)] == [(5, 1), (6, 2)]


@pytest.mark.parametrize("kind", [np.random.MT19937, np.random.PCG64, np.random.SFC64])
def test_a_generator_that_a_script_gave_to_numpy_goes_on(kind: Any, make_agent: MakeAgent) -> None:
    """Every save has its state, and a process in which numpy has its own gets one of the same kind."""
    agent, first = make_agent(), np.random.get_state(legacy=False)["bit_generator"]
    session, state = session_of(agent), {"counter": Counter()}
    try:
        np.random.set_bit_generator(kind(1))
        session.restore(state)
        for step in (1, 2, 3):
            np.random.standard_normal()
            session.step(step)
            session.checkpoint(state)
            assert session.flush()
        assert session.counts.saved == 3
        expected = np.random.standard_normal(3).tolist()
        np.random.set_bit_generator(np.random.MT19937(5))
        session_of(agent, (3, agent.shard(0, 3))).restore(state)
        rng.apply(saved := rng.capture())
        assert np.random.standard_normal(3).tolist() == expected
        drawn = []
        for rank in (1, 2, 1):  # of more ranks than saved it
            rng.apply(saved, reseed_as=rank)
            drawn.append(np.random.standard_normal(3).tolist())
        assert drawn[0] == drawn[2] != drawn[1]
        assert expected not in drawn
    finally:
        np.random.set_bit_generator(getattr(np.random, first)())


def _with_head(name: str) -> dict[str, Any]:
    """A model with a head, and another one under a ``name`` of its own."""
    return {"model": nn.ModuleDict({"head": nn.Linear(2, 1)}), name: nn.Linear(2, 1)}


def _with_options(name: str) -> dict[str, Any]:
    return training() | {name: Counter()}


@pytest.mark.parametrize(
    ("state", "name"),
    [
        (_with_head("model.head"), "model.head.bias"),
        (_with_options("optimizer/groups"), "optimizer/groups"),
    ],
)
def test_parts_whose_names_make_one_of_two_tensors_are_refused(
    state: dict[str, Any], name: str, make_agent: MakeAgent
) -> None:
    """The second would come back in place of the first."""
    session = session_of(make_agent())
    session.restore(state)
    session.step(1)
    with pytest.raises(
        ScriptRefusedError, match=rf"{name}: two parts of the state have an item of this name"
    ):
        session.checkpoint(state)


def test_parts_with_dots_in_their_names_are_no_error(make_agent: MakeAgent) -> None:
    """As long as all of their items have names of their own."""
    agent = make_agent()
    session, state = (
        session_of(agent),
        _with_head("model.other") | {"counter": Counter(), "counter.value": Counter()},
    )
    session.restore(state)
    state["counter.value"].value = 7
    session.step(1)
    session.checkpoint(state)
    assert session.flush()
    fresh = _with_head("model.other") | {"counter": Counter(), "counter.value": Counter()}
    session_of(agent, (1, agent.shard(0, 1))).restore(fresh)
    assert (fresh["counter"].value, fresh["counter.value"].value) == (0, 7)
    assert torch.equal(fresh["model.other"].weight, state["model.other"].weight)


def test_a_torn_shard_is_refused_by_name(make_agent: MakeAgent) -> None:
    """The error of the restore names the rank whose shard is bad."""
    agent = make_agent()
    run(session_of(agent), training(), 3)
    shard = agent.shard(0, 3)
    data = bytearray(shard.read_bytes())
    data[-200] ^= 1
    shard.write_bytes(data)
    with pytest.raises(CheckpointError, match="rank 0 at step 3"):
        session_of(agent, (3, shard)).restore(training())


def test_state_of_a_part_from_a_release_that_noted_no_parts_is_taken() -> None:
    """8-bit state of torchao beside a distributed parameter: at the same number of ranks it fits, as it did then."""
    model = nn.Linear(4, 1, bias=False)
    part = OptimizerPart("optimizer", Part(torch.optim.SGD(model.parameters())), {"model": model})
    part._saved = {"weight": {"exp_avg": ("@local", ("@ref", "own/0/x", "cpu", None), [], (8,), (1,))}}
    known = Known(Metadata({}), {})
    part._require_placeable("weight", model.weight, None, known)
    with pytest.raises(CheckpointError, match="it was made of a rank's part of the parameter"):
        part._require_placeable("weight", model.weight, {}, known)


def test_too_little_shared_memory_is_reported_before_training(
    make_agent: MakeAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """restore() states the need of this machine's ranks and the peer's copies; files that are there already count."""
    agent = make_agent()
    model = nn.Linear(1024, 1024, bias=False)
    state = {"model": model, "optimizer": torch.optim.AdamW(model.parameters())}
    monkeypatch.setattr(room, "free_nbytes", lambda _: 95 << 20)
    session = session_of(agent, LOCAL_WORLD_SIZE="2")
    with pytest.raises(
        CheckpointError, match=r"2 ranks x 2 buffers of 12.0 MiB and .* need 96.0 MiB, .* for 95.0 MiB"
    ):
        session.restore(state)
    peer = agent.shards.parent.parent / "peer" / agent.shards.name
    peer.mkdir(parents=True)
    (peer / "r7-a.shard").write_bytes(bytes(1 << 20))
    assert session.restore(state) == 0


@pytest.mark.parametrize(
    ("make", "tensors"),
    [
        (torch.optim.AdamW, 2),
        (lambda p: torch.optim.Adam(p, amsgrad=True), 3),
        (lambda p: torch.optim.SGD(p, 0.1), 0),
        (lambda p: torch.optim.SGD(p, 0.1, momentum=0.9), 1),
        (lambda p: torch.optim.RMSprop(p, centered=True, momentum=0.9), 3),
        (torch.optim.Adagrad, 1),
    ],
)
def test_the_size_is_known_before_the_first_step(make: Any, tensors: int) -> None:
    """The size that is counted beforehand is that of the optimizer's tensors."""
    model = nn.Linear(512, 512, bias=False)
    state = {"model": model, "optimizer": make(model.parameters())}
    before = StateTree(state).expected_nbytes()
    model(torch.randn(3, 512)).sum().backward()
    state["optimizer"].step()
    assert before - ((1 + tensors) << 20) in range(16)
    assert StateTree(state).expected_nbytes() - before in range(16)


def test_what_lay_on_the_host_beside_a_parameter_on_a_device_lies_there_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Adam's count of steps of a parameter that is one number has the parameter's shape, and another place.

    The meta device stands for a GPU.
    """
    model = nn.Module()
    model.scale = nn.Parameter(torch.ones((), device="meta"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    nodes: dict[str, Any] = {
        "model": {"state": {"scale": ("@ref", "model.scale", "cuda", None)}},
        "optimizer/state": {
            "params": {
                "scale": {
                    "step": ("@ref", "optimizer.step", "cpu", None),
                    "moment": ("@ref", "optimizer.moment", "cuda", None),
                }
            },
            "shared": [],
        },
        "optimizer/groups": [{"params": ["scale"], "lr": 0.1}],
    }
    placed_as: dict[str, Any] = {}

    def want(_: Known, node: Any, like: Any = None, held: Any = None) -> None:
        if isinstance(node, tuple):
            placed_as[node[1]] = like

    monkeypatch.setattr(Known, "want", want)
    OptimizerPart("optimizer", Part(optimizer), {"model": model}).want(Known(Metadata({}), nodes))
    assert placed_as == {"optimizer.step": None, "optimizer.moment": model.scale}


def test_an_object_that_refuses_its_state_is_named(make_agent: MakeAgent) -> None:
    """torch's own message of a scaler that was switched on names no object."""
    agent = make_agent()
    session = session_of(agent)
    session.restore(state := {"scaler": torch.amp.GradScaler("cpu", enabled=False)})
    session.step(1)
    session.checkpoint(state)
    session.close(10)
    again = session_of(agent, (1, agent.shard(0, 1)))
    with pytest.raises(RuntimeError, match="source state dict is empty") as raised:
        again.restore({"scaler": torch.amp.GradScaler("cpu", enabled=True)})
    assert raised.value.__notes__ == ["raised by load_state_dict() of state['scaler'] (GradScaler)"]

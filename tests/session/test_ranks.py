"""Several rank processes under a fake agent."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from holdfast.agent import wire
from holdfast.storage.checkpoints import buffers
from tests.session.conftest import MakeAgent
from tests.session.harness import EXAMPLE, FakeAgent
from tests.storage.checkpoints.publish import publish, stock_load

pytestmark = [pytest.mark.e2e, pytest.mark.torch]
SCRIPTS = Path(__file__).with_name("scripts")


def test_a_bad_step_of_one_rank_is_saved_by_none(make_agent: MakeAgent) -> None:
    """Ranks agree: when one rank's loss is not finite no rank saves that step, and nobody waits for ever."""
    agent = make_agent(2)
    agent.start(SCRIPTS / "uneven_nan.py", [])
    assert agent.join() == [0, 0], agent.output()
    agent.wait_for(lambda: len(agent.of("saved")) == 8)
    assert {each["step"] for each in agent.of("saved")} == {1, 2, 4, 5}


def test_a_group_that_ends_before_its_model_does_not_hang(make_agent: MakeAgent, tmp_path: Path) -> None:
    """Torch joins Gloo's threads under the interpreter's lock when DDP is the last to let go; they may need it."""
    agent = make_agent(3)
    agent.start(SCRIPTS / "ends.py", [tmp_path])
    assert agent.join() == [0, 0, 0], agent.output()


def test_replicated_state_is_written_once_and_read_by_stock_torch(
    make_agent: MakeAgent, tmp_path: Path
) -> None:
    """DDP's copies are divided among the ranks' owned parts; together they are a stock checkpoint."""
    agent = make_agent(2)
    agent.start(EXAMPLE, ["--steps", 4, "--out", tmp_path / "end.pt"])
    assert agent.join() == [0, 0], agent.output()
    owned = [each.owned_nbytes for _, each in buffers.inventory(agent.shards) if each.step == 4]
    payload = [each.payload_nbytes for _, each in buffers.inventory(agent.shards) if each.step == 4]
    assert max(owned) < 0.6 * min(payload)
    loaded = stock_load(publish(agent.shards, 4, tmp_path / "ckpt"))
    model = torch.load(tmp_path / "end.pt")["model"]
    assert loaded["model"].keys() == model.keys()
    assert all(torch.equal(loaded["model"][name], model[name]) for name in model)
    assert loaded["batches"] == {"consumed": 4 * 2 * 8}
    assert {"rng/0", "rng/1"} <= loaded.keys()


def test_a_directory_is_restored_at_another_world_size(make_agent: MakeAgent, tmp_path: Path) -> None:
    """A replay at reduced or grown data parallelism starts from the checkpoint in S3; saves nothing."""
    agent = make_agent(2)
    agent.start(EXAMPLE, ["--steps", 4])
    assert agent.join() == [0, 0], agent.output()
    directory = publish(agent.shards, 4, tmp_path / "ckpt")
    for size in (1, 3):
        replay = make_agent(size)
        replay.start(
            EXAMPLE,
            ["--steps", 100],
            lambda _: (4, directory),
            **{wire.ENV_REPLAY_STEPS: "2", wire.ENV_PEER: "0"},
        )
        assert replay.join() == [0] * size, replay.output()
        replay.wait_for(lambda replay=replay, size=size: len(replay.of("replayed")) == size)
        assert all(each["ok"] for each in replay.of("replayed"))
        assert [each["step"] for each in replay.of("step", 0)] == [5, 6]
        assert not replay.shards.exists()


def test_a_new_epoch_saves_by_the_plan_of_its_shards(make_agent: MakeAgent, tmp_path: Path) -> None:
    """No rank plans anew after a restart, unless one of them must: then all do."""
    agent = make_agent(2)
    agent.start(EXAMPLE, ["--steps", 3])
    assert agent.join() == [0, 0], agent.output()
    agent.start(EXAMPLE, ["--steps", 5], lambda rank: (3, agent.shard(rank, 3)))
    assert agent.join() == [0, 0], agent.output()
    assert plans(agent) == {(4, "1.1"), (5, "1.1")}
    loaded = stock_load(publish(agent.shards, 5, tmp_path / "ckpt"))
    assert loaded["batches"] == {"consumed": 5 * 2 * 8}

    buffers.metadata_path(agent.shards, "1.1").unlink()
    agent.start(EXAMPLE, ["--steps", 7], lambda rank: (5, agent.shard(rank, 5)))
    assert agent.join() == [0, 0], agent.output()
    assert plans(agent) == {(6, "3.1"), (7, "3.1")}


def plans(agent: FakeAgent) -> set[tuple[int, str]]:
    """Step and plan of the shards that lie there."""
    return {(each.step, each.plan) for _, each in buffers.inventory(agent.shards)}


def test_fsdp_shards_are_restored_exactly(make_agent: MakeAgent, tmp_path: Path) -> None:
    """Sharded parameters and optimizer state: interrupted, from memory and from a directory, equal weights."""
    outs = [tmp_path / name for name in ("whole", "memory", "stock")]
    for out in outs:
        out.mkdir()
    script = SCRIPTS / "fsdp.py"
    whole, agent = make_agent(2), make_agent(2)
    whole.start(script, [6, outs[0]])
    assert whole.join() == [0, 0], whole.output()
    agent.start(script, [4, outs[1]])
    assert agent.join() == [0, 0], agent.output()
    directory = publish(agent.shards, 4, tmp_path / "ckpt")
    agent.start(script, [6, outs[1]], lambda rank: (4, agent.shard(rank, 4)))
    assert agent.join() == [0, 0], agent.output()
    agent.start(script, [6, outs[2]], lambda _: (4, directory))
    assert agent.join() == [0, 0], agent.output()
    for rank in range(2):
        expected, memory, stock = (torch.load(out / f"{rank}.pt") for out in outs)
        assert all(torch.equal(expected[name], memory[name]) for name in expected)
        assert all(torch.equal(expected[name], stock[name]) for name in expected)

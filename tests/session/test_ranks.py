"""Several rank processes under a fake agent."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
import torch

from holdfast.agent import wire
from holdfast.models.checkpoint import Shard, Tier
from holdfast.policies.restore.restore_plan import choose
from holdfast.storage.checkpoints.save import buffers
from tests.session.conftest import MakeAgent
from tests.session.harness import EXAMPLE, FakeAgent
from tests.storage.checkpoints.publish import publish, stock_load

pytestmark = [pytest.mark.e2e, pytest.mark.torch]
SCRIPTS = Path(__file__).with_name("scripts")


def test_a_bad_step_of_one_rank_is_never_restorable(make_agent: MakeAgent) -> None:
    """The rank whose loss is not finite does not save it: the others' shards of that step are of no use."""
    agent = make_agent(2)
    agent.start(SCRIPTS / "uneven_nan.py", [])
    assert agent.join() == [0, 0], agent.output()
    agent.wait_for(lambda: len(agent.of("common")) == 8, 120)
    assert {(each["since"], each["step"]) for each in agent.of("common")} == {(0, 1), (1, 2), (2, 4), (4, 5)}
    assert 3 not in {each["step"] for each in agent.of("saved", 1)}
    assert agent.common_step() == 5


def test_steps_exchange_nothing_on_the_main_thread(make_agent: MakeAgent, tmp_path: Path) -> None:
    """After the first call no collective is made or waited for by the thread that trains, and all saves are common."""
    agent = make_agent(3)
    agent.start(SCRIPTS / "counted.py", [tmp_path])
    assert agent.join() == [0, 0, 0], agent.output()
    for rank in range(3):
        counts = json.loads((tmp_path / f"{rank}.json").read_text())
        assert counts["first"] > 0, "the counter counts nothing"
        assert counts["steady"] == 0
        assert counts["common"] == counts["saved"] == 20
        assert counts["new_plan"] > 0
        assert counts["after"] > 20


def test_a_rank_that_is_a_step_ahead_is_not_mixed_in(make_agent: MakeAgent) -> None:
    """Four saves are counted by all, of other steps on one rank: none of them is common, and none is restored."""
    agent = make_agent(2)
    agent.start(SCRIPTS / "ahead.py", [])
    assert agent.join() == [0, 0], agent.output()
    assert not agent.of("common")
    shards = [
        Shard(
            job=each.job,
            rank=each.rank,
            step=each.step,
            epoch=each.epoch,
            number=each.number,
            world_size=each.world_size,
            machine="m0",
            tier=Tier.MEMORY,
            nbytes=each.file_nbytes,
            digest=each.digest,
        )
        for _, each in buffers.inventory(agent.shards)
    ]
    assert {(each.rank, each.step - each.number) for each in shards} == {(0, 0), (1, 1)}
    assert {each.step for each in shards if each.rank == 0} & {each.step for each in shards if each.rank == 1}
    assert choose(shards, (), 2, {0: "m0", 1: "m0"}).step == 0


def test_the_last_save_is_not_left_out(make_agent: MakeAgent, tmp_path: Path) -> None:
    """One rank's copies last beyond the other's next calls, which are left out; the last step is common."""
    agent = make_agent(2)
    agent.start(SCRIPTS / "last.py", [tmp_path], **{wire.ENV_PATIENCE: "0"})
    assert agent.join() == [0, 0], agent.output()
    agent.wait_for(lambda: 7 in {each["step"] for each in agent.of("common")}, 120)
    assert agent.of("skipped")
    assert agent.common_step() == 7


def test_ranks_save_as_often_as_the_one_that_saves_cost_most_allows(make_agent: MakeAgent) -> None:
    """Each has a distance of its own; all save the same steps."""
    agent = make_agent(2)
    agent.start(SCRIPTS / "paced.py", [], **{wire.ENV_PATIENCE: "", wire.ENV_MAX_OVERHEAD: "0.2"})
    assert agent.join() == [0, 0], agent.output()
    agent.wait_for(lambda: all(80 in {each["step"] for each in agent.of("common", rank)} for rank in (0, 1)))
    saved = [[each["step"] for each in agent.of("common", rank)] for rank in (0, 1)]
    assert saved[0] == saved[1]
    apart = [later - sooner for sooner, later in itertools.pairwise(saved[0][1:-1])]
    assert set(apart) == {9}, "from the second on, which comes with a new plan, to the last step's"
    assert len(apart) >= 6
    assert len(agent.of("skipped", 0)) <= 2, "only while a plan is made: their weights differ, in time"


def test_a_peer_that_dies_ends_no_other_rank(make_agent: MakeAgent) -> None:
    """The exchange with a dead rank fails beside training; the others go on, count it, and end well."""
    agent = make_agent(3)
    agent.start(SCRIPTS / "left.py", [])
    assert agent.join() == [0, -9, 0], agent.output()
    agent.wait_for(lambda: agent.of("save_failed", 0) and agent.of("save_failed", 2), 120)


def test_ranks_that_do_not_keep_step_have_common_saves(make_agent: MakeAgent) -> None:
    """Nothing in their steps holds them together: the fast one waits now and then, and both save at one call."""
    agent = make_agent(2)
    agent.start(SCRIPTS / "apart.py", [], **{wire.ENV_PATIENCE: ""})
    assert agent.join() == [0, 0], agent.output()
    agent.wait_for(lambda: len(agent.of("common")) >= 6)


@pytest.mark.parametrize("what", [pytest.param("saves", marks=pytest.mark.thorough), "without an agent"])
def test_a_group_that_ends_before_its_model_does_not_hang(
    make_agent: MakeAgent, tmp_path: Path, what: str
) -> None:
    """Torch joins Gloo's threads under the interpreter's lock when DDP is the last to let go; they may need it."""
    agent = make_agent(3)
    agent.start(SCRIPTS / "ends.py", [tmp_path, what])
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


@pytest.mark.thorough
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


@pytest.mark.thorough
def test_a_new_epoch_saves_by_the_plan_of_its_shards(make_agent: MakeAgent, tmp_path: Path) -> None:
    """No rank makes a new plan after a restart, unless one of them must: then all do."""
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

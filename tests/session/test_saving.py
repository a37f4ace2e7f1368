"""The content and time of a save's copies, whatever changes the state meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

from holdfast.agent import wire
from holdfast.errors import CheckpointError
from holdfast.session import Session, boundary, saver
from holdfast.session.agreement import Group, Result, Vote
from holdfast.session.counts import Counts
from holdfast.session.state import StateTree
from holdfast.storage.checkpoints.save import buffers, slot_files
from holdfast.storage.checkpoints.save.transfer import Route, TensorMove, Transfer
from holdfast.storage.checkpoints.save.writer import Save, ShardWriter
from tests.session.conftest import MakeAgent
from tests.session.harness import FakeAgent
from tests.session.small import contents, run, session_of, train, training

pytestmark = pytest.mark.torch


def hold_saves(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Saves copy nothing before the event is set."""
    go = threading.Event()
    whole = Transfer.run

    def run(self: Transfer, reached: Any) -> None:
        assert go.wait(60)
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


def test_a_step_that_ranks_are_held_at_is_saved_though_none_was_due(
    make_agent: MakeAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rank left out the save before: the next one is due later, unless the job is to stop there."""
    monkeypatch.setattr(Group, "exchange", lambda *_: Result(common=False, skipped=True))
    agent = make_agent()
    session, state = session_of(agent, **{wire.ENV_PATIENCE: "0"}), training()
    session.restore(state)

    def saved(step: int) -> int:
        session._saver.save(state, step, good=True, everything=False, step_s=0.0)
        assert session.flush()
        return session.counts.saved

    assert [saved(step) for step in range(1, 6)] == [1, 1, 2, 2, 2]
    agent.controls[0].hold_at_step = 6
    assert saved(6) == 3


def test_an_optimizer_that_is_replayed_in_a_graph_changes_no_copy(
    make_agent: MakeAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replay runs no hook and counts no change: what it changes is copied before checkpoint() returns."""
    agent = make_agent()
    session, state = session_of(agent), training()
    session.restore(state)
    with monkeypatch.context() as recording:
        recording.setattr(saver, "_is_recorded", lambda: True)
        train(state)
    go = hold_saves(monkeypatch)
    session.step(1)
    session.checkpoint(state)
    before = state["model"][0].weight.detach().clone()
    state["model"][0].weight.data.zero_()
    go.set()
    assert session.flush()
    [(path, _)] = buffers.inventory(agent.shards)
    assert torch.equal(contents(path)["model.0.weight"], before)


def saved_once(agent: FakeAgent) -> tuple[Session, dict[str, Any]]:
    """A session whose optimizer stepped before the first save, which is complete."""
    session, state = session_of(agent), training()
    session.restore(state)
    train(state)
    session.step(1)
    session.checkpoint(state)
    assert session.flush()
    return session, state


def test_an_optimizer_that_did_not_step_is_not_waited_for(
    make_agent: MakeAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its step may be in a graph that was recorded before the session was made, or compiled: no hook is run."""
    agent = make_agent()
    session, state = saved_once(agent)
    go = hold_saves(monkeypatch)
    session.step(2)
    session.checkpoint(state)
    before = state["model"][0].weight.detach().clone()
    state["model"][0].weight.data.zero_()
    go.set()
    assert session.flush()
    assert torch.equal(contents(agent.shard(0, 2))["model.0.weight"], before)


def test_a_save_that_a_step_went_past_does_not_count(
    make_agent: MakeAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its optimizer stepped before and waits no more: the next step, a graph, was made in the middle of the copy."""
    agent = make_agent()
    session, state = saved_once(agent)
    go = hold_saves(monkeypatch)
    train(state)
    session.step(2)
    session.checkpoint(state)
    state["model"][0].weight.data.zero_()
    session.step(3)
    go.set()
    assert session.flush()
    assert (session.counts.saved, session.counts.torn) == (1, 1)
    session.checkpoint(state)
    assert session.flush()
    assert not contents(agent.shard(0, 3))["model.0.weight"].any()


def test_a_replaced_tensor_and_a_new_key_are_saved(make_agent: MakeAgent) -> None:
    """The record kept between saves is dropped when the state's tensors or names change."""
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


@pytest.mark.parametrize("view", [torch.conj, lambda each: each.conj().imag])
def test_a_view_that_is_computed_when_it_is_read_is_copied_as_what_it_is(
    view: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    """The memory of a conjugated or negated tensor has other bytes than the tensor."""
    source = view(torch.randn(40_000, dtype=torch.complex64))
    target = torch.empty(source.shape, dtype=source.dtype)
    Transfer(Route([TensorMove(source, target, 0)])).run(lambda _: None)
    assert torch.equal(target, source.resolve_conj().resolve_neg())


def test_the_bytes_are_those_of_the_boundary(make_agent: MakeAgent, monkeypatch: pytest.MonkeyPatch) -> None:
    """Forward passes change running statistics and the optimizer changes parameters before the thread copies."""
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
    for _ in range(
        3
    ):  # each forward changes the buffers; the first optimizer step copies what is not copied yet
        train(state)
    go.set()
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
        if step == 4:  # now the peer has step 1
            agent.controls[0].replicated_step = 1
            assert session.flush(20)
    agent.controls[0].replicated_step = 5
    assert session.flush(20)
    assert session.counts == Counts(saved=2, skipped=3, common=2)
    assert [each.step for _, each in buffers.inventory(agent.shards)] == [1, 5]
    agent.wait_for(lambda: len(agent.of("skipped")) == 3 and len(agent.of("common")) == 2)
    assert [(each["since"], each["step"]) for each in agent.of("common")] == [(0, 1), (1, 5)]
    assert agent.of("skipped")[-1]["skipped"] == 3


@pytest.mark.parametrize("apart", [False, True])
def test_only_a_rank_that_is_far_ahead_waits_for_the_others(
    make_agent: MakeAgent, monkeypatch: pytest.MonkeyPatch, apart: bool
) -> None:
    """Ranks in step wait for no one: a rank whose peer was slow or away used to hold up all, at every eighth call."""
    agent, waits = make_agent(replicate=False), list[float]()
    monkeypatch.setattr(boundary, "REPLICATION_S", 1000.0)
    session, state = session_of(agent, **{wire.ENV_PATIENCE: "0"}), training()
    session.restore(state)
    saving = session._saver
    monkeypatch.setattr(saving, "flush", waits.append)
    saving._outcomes.waiting, saving._outcomes.apart = True, apart
    for step in range(1, 40):
        session.step(step)
        session.checkpoint(state)
    assert session.counts.skipped > 30
    assert (saver.APART_S in waits) is apart
    agent.controls[0].replicated_step = 40


def test_the_last_save_waits_for_the_one_before(
    make_agent: MakeAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Step 5 is not due, and the save of step 4 is under way: without ``last`` it would be left out twice."""
    agent = make_agent(replicate=False)
    monkeypatch.setattr(boundary, "REPLICATION_S", 1000.0)
    session, state = session_of(agent, **{wire.ENV_PATIENCE: "0", wire.ENV_MEMORY_EVERY: "2"}), training()
    session.restore(state)
    for step in range(1, 6):
        train(state)
        session.step(step)
        if step == 5:  # the peers get steps 4 and 5 while the call waits
            threading.Timer(0.3, setattr, (agent.controls[0], "replicated_step", 5)).start()
        session.checkpoint(state, last=step == 5)
        if step < 4:
            agent.controls[0].replicated_step = step
            assert session.flush(20)
    assert session.counts == Counts(saved=4, common=4), "steps 1, 2, 4 and 5"
    assert max(each.step for _, each in buffers.inventory(agent.shards)) == 5
    session.checkpoint(state, last=True)
    assert session.counts.unstepped == 0, "the step is saved: nothing is left to do"


@pytest.mark.parametrize(
    ("calls", "saved"),
    [
        (range(1, 10), [1, 4, 8]),
        (range(3, 20, 5), [3, 8, 13, 18]),  # never at a multiple of 4 but once
        (range(1, 20, 2), [1, 5, 9, 13, 17]),  # never at all
    ],
)
def test_of_calls_at_some_steps_every_kth_step_has_one(
    make_agent: MakeAgent, calls: range, saved: list[int]
) -> None:
    """`memory_every_steps: 4`, in a script that calls checkpoint() when it likes."""
    agent = make_agent()
    session, state = session_of(agent, **{wire.ENV_MEMORY_EVERY: "4"}), training()
    session.restore(state)
    for step in range(1, calls[-1] + 1):
        session.step(step)
        if step in calls:
            session.checkpoint(state)
            assert session.flush(20)
    agent.wait_for(lambda: [each["step"] for each in agent.of("common")] == saved)


def test_the_last_step_is_not_saved_when_it_is_not_finite(make_agent: MakeAgent) -> None:
    """One attempt: no other would be better."""
    agent = make_agent()
    session, state = session_of(agent), training()
    session.restore(state)
    session.step(1)
    session.checkpoint(state)
    session.step(2, loss=float("nan"))
    session.checkpoint(state, last=True)
    assert session.counts.common == 1
    assert [each.step for _, each in buffers.inventory(agent.shards)] == [1]


def test_a_change_without_an_optimizer_is_noticed(
    make_agent: MakeAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A parameter that changes in place during the copy: that save does not count, later ones copy it first."""
    agent = make_agent()
    go = hold_saves(monkeypatch)
    session, state = session_of(agent), training()
    session.restore(state)
    for step in range(1, 4):
        train(state)
        go.clear()
        session.step(step)
        session.checkpoint(state)
        before = state["model"][0].weight.detach().clone()
        with torch.no_grad():
            state["model"][0].weight.add_(1.0)
        go.set()
        assert session.flush()
    assert session.counts == Counts(saved=2, torn=1, common=2)
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
    session.wait()
    state["model"][0].weight.data.add_(1.0)
    go.set()
    assert session.flush()
    assert torch.equal(contents(agent.shard(0, 1))["model.0.weight"], before)


def test_a_save_that_fails_ends_no_training(make_agent: MakeAgent, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error after the first save is counted and reported, the last common shard stays, the next call works."""
    agent = make_agent()
    session, state = session_of(agent), training()
    session.restore(state)
    broken = OSError(28, "No space left on device")

    def fail(*_: object, **__: object) -> None:
        raise broken

    for step in range(1, 5):
        session.step(step)
        with monkeypatch.context() as patch:
            if step == 2:
                patch.setattr(ShardWriter, "start", fail)
            if step == 3:
                patch.setattr(Save, "run", fail)
            session.checkpoint(state)
            assert session.flush()
        assert step == 4 or [each.step for _, each in buffers.inventory(agent.shards)] == [1]
    assert session.counts == Counts(saved=2, failed=2, common=2)
    agent.wait_for(lambda: len(agent.of("save_failed")) == 2)
    assert "No space left" in agent.of("save_failed")[0]["reason"]


def test_a_lent_slot_without_memory_for_a_successor_is_a_skip(
    make_agent: MakeAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An upload takes long and shared memory is full: saves are left out until the loan ends."""
    agent = make_agent()
    session, state = session_of(agent), training()
    session.restore(state)
    for step in range(1, 6):
        session.step(step)
        if step == 3:
            slot, loan = agent.shard(0, 1), agent.folder / "loan"
            slot_files.lend(slot, 1, loan)

            def full(*_: object) -> None:
                raise OSError(28, "No space left on device")

            monkeypatch.setattr(slot_files, "_allocate", full)
        if step == 5:
            slot_files.release(slot, loan)
        session.checkpoint(state)
        assert session.flush()
    assert session.counts == Counts(saved=3, skipped=2, common=3)
    assert [each.step for _, each in buffers.inventory(agent.shards)] == [2, 5]


def test_torn_saves_never_cost_the_common_shard(make_agent: MakeAgent) -> None:
    """Saves that tear at many points, one after the other, take the same slot: the common shard is always whole."""
    agent = make_agent()
    session, state = session_of(agent), training()
    session.restore(state)
    session._saver._outcomes.changing = Ignored()
    common, torn = 0, 0
    for step in range(1, 121):
        session.step(step)
        session.checkpoint(state)
        if step > 1 and step % 4:
            save = session._saver._save
            assert save is not None
            if step % 2:
                save._transfer._copied.wait()
            with torch.no_grad():
                state["model"][step % 2 * 3].weight.add_(1.0)
        assert session.flush()
        found = {each.step: path for path, each in buffers.inventory(agent.shards)}
        common = step if session.counts.torn == torn else common
        torn = session.counts.torn
        assert common in found
        buffers.verify(found[common])
    assert session.counts.torn + session.counts.saved == 120


def test_a_save_of_unknown_outcome_is_never_overwritten(
    make_agent: MakeAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rank is lost in the exchange about step 3: others may call that step common, or only the one before it."""
    exchange = Group.exchange

    def broken(self: Group, vote: Vote, ended: Callable[[float], bool]) -> Result:
        if vote.number >= 3:
            raise CheckpointError("ranks cannot agree on their saves: connection closed by peer")
        return exchange(self, vote, ended)

    monkeypatch.setattr(Group, "exchange", broken)
    agent = make_agent()
    session, state = session_of(agent), training()
    session.restore(state)
    for step in range(1, 6):
        session.step(step)
        session.checkpoint(state)
        assert session.flush()
    assert sorted(each.step for _, each in buffers.inventory(agent.shards)) == [2, 3]
    assert session.counts.skipped == 2


class Ignored(set[str]):
    """Remembers nothing: the same tensor tears again."""

    def update(self, *_: object) -> None:
        pass


def test_a_call_without_a_step_says_so_once(make_agent: MakeAgent, caplog: pytest.LogCaptureFixture) -> None:
    """Nothing is saved, nothing hangs, and the log has one line."""
    agent = make_agent()
    session, state = session_of(agent), training()
    session.restore(state)
    for _ in range(3):
        session.checkpoint(state)
    assert session.counts == Counts(unstepped=3)
    assert sum("no step()" in each.message for each in caplog.records) == 1


def test_a_script_that_counts_from_the_beginning_again_is_notified(make_agent: MakeAgent) -> None:
    """It ignores what restore() returned: until its count has passed the restored step, its saves are failed ones."""
    agent = make_agent()
    run(session_of(agent), training(), 3)
    session, state = session_of(agent, (3, agent.shard(0, 3))), training()
    assert session.restore(state) == 3
    for step in range(1, 5):
        session.step(step)
        session.checkpoint(state)
        assert session.flush()
    assert session.counts == Counts(saved=1, failed=2, common=1, unstepped=1)
    agent.wait_for(lambda: [each["since"] for each in agent.of("common")][-1:] == [3])
    agent.wait_for(lambda: agent.of("save_failed"))
    assert (
        "was restored at step 3, and the script counts from an older one"
        in agent.of("save_failed")[0]["reason"]
    )

"""The last step of a job that has ended goes to S3 before its machines are freed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.clock import FakeClock
from holdfast.errors import CheckpointError, SilentError
from holdfast.models.agent import AgentState, Persist
from holdfast.models.checkpoint import RemoteCheckpoint, Shard, Tier
from holdfast.models.job import JobSpec, JobState
from holdfast.models.machine import Machine
from holdfast.operations.context import Context
from holdfast.operations.persist import persist_last
from holdfast.settings import Settings
from tests.storage.ledger.samples import register

JOB = "gpt"


class Agents:
    """Two machines with a rank each; step 7 is in memory, due in S3 or not."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.silent: set[str] = set()
        self.dying: set[str] = set()
        """They answer, and are gone when the order comes."""
        self.copies: dict[str, tuple[int, ...]] = {}
        """Ranks whose shards a machine keeps for others."""
        self.refuses = False
        self.orders: list[tuple[str, int, tuple[int, ...]]] = []
        monkeypatch.setattr(Context, "agent", lambda _, machine: Agent(self, machine))


class Agent:
    """One of them."""

    def __init__(self, all_of_them: Agents, machine: Machine) -> None:
        self._all, self._name = all_of_them, machine.name

    async def state(self) -> AgentState:
        if self._name in self._all.silent:
            raise SilentError("no answer")
        return AgentState(machine=self._name, incarnation="i1", shards=tuple(self._shards()))

    def _shards(self) -> Iterator[Shard]:
        own = int(self._name[1:])
        for rank in (own, *self._all.copies.get(self._name, ())):
            yield Shard(
                job=JOB,
                rank=rank,
                step=7,
                epoch=1,
                machine=self._name,
                tier=Tier.MEMORY if rank == own else Tier.PEER,
                nbytes=1,
                digest="d",
            )

    async def persist(self, order: Persist) -> None:
        if self._name in self._all.dying:
            raise SilentError("connection refused")
        if self._all.refuses:
            raise CheckpointError("no .metadata here")
        self._all.orders.append((self._name, order.step, order.ranks))


@pytest.fixture
def ctx(tmp_path: Path) -> Context:
    """The job is done."""
    ctx = Context(Settings(home=tmp_path), clock=FakeClock(1_000.0))
    ctx.ledger.create()
    for name in ("m0", "m1"):
        register(ctx.ledger, name)
    ctx.ledger.add_job(JobSpec(name=JOB, script="t.py", machines=2, ranks_per_machine=1), "v1")
    ctx.ledger.claim_standbys(JOB, 2)
    ctx.ledger.next_epoch(JOB)
    ctx.ledger.open_epoch(JOB, 1, 0, "v1", ["m0", "m1"], "new")
    ctx.ledger.set_job(JOB, machines=("m0", "m1"), state=JobState.DONE)
    return ctx


@pytest.fixture
def agents(monkeypatch: pytest.MonkeyPatch) -> Agents:
    return Agents(monkeypatch)


async def test_it_is_ordered_until_it_is_there(ctx: Context, agents: Agents) -> None:
    """A step that agents accepted is not in S3 yet."""
    assert not await persist_last(ctx, JOB)
    assert sorted(agents.orders) == [("m0", 7, (0,)), ("m1", 7, (1,))]
    ctx.ledger.record_checkpoint(RemoteCheckpoint(job=JOB, step=7, epoch=1, world_size=2, key="7/"))
    assert await persist_last(ctx, JOB)


async def test_an_agent_without_an_answer_is_asked_again(ctx: Context, agents: Agents) -> None:
    """Without its shards no step is complete; that does not mean that nothing is left to upload."""
    agents.silent = {"m1"}
    assert not await persist_last(ctx, JOB)
    assert agents.orders == []
    agents.silent = set()
    assert not await persist_last(ctx, JOB)
    assert len(agents.orders) == 2


async def test_a_machine_that_dies_before_its_order_is_stood_in_for(ctx: Context, agents: Agents) -> None:
    """Another one keeps a copy of what it had: the step reaches S3 all the same."""
    agents.dying, agents.copies = {"m0"}, {"m1": (0,)}
    assert not await persist_last(ctx, JOB)
    assert agents.orders == [("m1", 7, (1,)), ("m1", 7, (0, 1))]


async def test_without_a_copy_it_is_asked_again(ctx: Context, agents: Agents) -> None:
    """A machine that is gone may come back with what it holds, also where the other one refuses."""
    agents.dying, agents.refuses = {"m0"}, True
    assert not await persist_last(ctx, JOB)


async def test_a_refusal_is_final(ctx: Context, agents: Agents) -> None:
    """Its machines are not kept for what they cannot upload."""
    agents.refuses = True
    assert await persist_last(ctx, JOB)


async def test_a_suspect_step_is_not_what_is_kept(ctx: Context, agents: Agents) -> None:
    """It would not count in S3, and be ordered again until the machines are given back."""
    ctx.ledger.mark_suspect(JOB, 7, "silent corruption")
    assert await persist_last(ctx, JOB)
    assert agents.orders == []

"""When a rank's saves are rehearsed: which epochs need a proof of their own."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.agent.checkpoints.rehearsals import Rehearsals
from holdfast.models.checkpoint import Tier
from holdfast.models.rehearsal import Problem, Proof, Rehearsal
from holdfast.storage.checkpoints.save import buffers
from tests.agent.shards import write_shard

RANKS = (0, 1)


class Machine:
    """Rehearsals on a scripted machine, whose prover finds the errors in ``wrong``."""

    why_not = ""

    def __init__(self, folder: Path) -> None:
        self.rehearsed: list[tuple[int, int]] = []
        """Epoch and rank."""
        self.jobs: list[str] = []
        """Job of each."""
        self.wrong = ""
        self.turn = asyncio.Event()
        """Cleared, a proof takes until it is set."""
        self.turn.set()
        self._folder = folder
        self._run: Any = None
        self._rehearsals = Rehearsals(self, lambda _run, _found: None, calm_s=0.0)  # type: ignore[arg-type]

    async def shard(self, job: str, rank: int, allowed: object = None) -> Rehearsal:
        """Prove a shard, as the prover does."""
        epoch = self._run.start.epoch
        self.rehearsed.append((epoch, rank))
        self.jobs.append(job)
        await self.turn.wait()
        proof = Proof.of([Problem(path="a", wrong=self.wrong)] if self.wrong else [])
        return Rehearsal(
            job=job, rank=rank, step=epoch, epoch=epoch, plan="plan", tier=Tier.MEMORY, proof=proof
        )

    async def epoch(
        self, number: int, code: str = "c1", *, job: str = "toy", restored: int | None = None
    ) -> None:
        """Save once on each rank in a new epoch, and do what is due; None: the epoch before was restored."""
        if self._run is not None:
            self._run.running = False
        restore = SimpleNamespace(step=number - 1 if restored is None else restored)
        start = SimpleNamespace(
            job=job, replay=None, code_version=code, ranks=RANKS, epoch=number, restore=restore
        )
        self._run = SimpleNamespace(start=start, running=True, allowed=lambda _rank: None)
        for rank in RANKS:
            path = write_shard(self._folder, rank=rank, step=number, epoch=number)
            self._rehearsals.saved(self._run, rank, path)
        await self.settle()

    async def settle(self) -> None:
        """Do what is due."""
        for _ in range(20):
            await asyncio.sleep(0)
        await asyncio.sleep(0.01)

    def proven_step(self) -> int:
        """Return the step that heartbeats call proven."""
        found = self._rehearsals.summary(self._run)
        return found.step if found else 0


@pytest.fixture
async def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


async def test_a_proof_holds_in_the_next_epoch(machine: Machine) -> None:
    """Of the same plan and code: after a recovery the first steps have the processors to themselves."""
    await machine.epoch(1)
    assert machine.rehearsed == [(1, 0), (1, 1)]
    await machine.epoch(2)
    assert machine.rehearsed == [(1, 0), (1, 1)]
    assert machine.proven_step() == 1


async def test_another_version_of_the_code_is_rehearsed(machine: Machine) -> None:
    """Its state may hold other objects under the same names."""
    await machine.epoch(1)
    await machine.epoch(2, code="c2")
    assert machine.rehearsed[2:] == [(2, 0), (2, 1)]


async def test_a_proof_of_steps_that_were_taken_back_is_none(machine: Machine) -> None:
    """The job went back behind it, or was submitted again: heartbeats report no step that it has not done."""
    await machine.epoch(1)
    await machine.epoch(2, restored=0)
    assert machine.rehearsed[2:] == [(2, 0), (2, 1)]
    assert machine.proven_step() == 2


async def test_a_failure_is_tried_again_in_the_next_epoch(machine: Machine) -> None:
    """It may be over."""
    machine.wrong = "gone"
    await machine.epoch(1)
    machine.wrong = ""
    await machine.epoch(2)
    assert machine.rehearsed[2:] == [(2, 0), (2, 1)]
    assert machine.proven_step() == 2


async def test_another_plan_is_rehearsed(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The state has changed its structure between two epochs."""
    await machine.epoch(1)
    read = buffers.read_header

    def of_another_plan(path: Path) -> buffers.ShardHeader | None:
        header = read(path)
        return header and header.model_copy(update={"plan": "other"})

    monkeypatch.setattr(buffers, "read_header", of_another_plan)
    await machine.epoch(2)
    assert machine.rehearsed[2:] == [(2, 0), (2, 1)]


async def test_a_job_that_ended_while_it_waited_holds_up_no_other(machine: Machine) -> None:
    """It is forgotten when the next job saves; its rank's turn, which comes after that, passes."""
    machine.turn.clear()
    await machine.epoch(1, job="old")
    await machine.epoch(1, job="new")
    machine.turn.set()
    await machine.settle()
    assert machine.jobs == ["old", "new", "new"]
    assert machine.proven_step() == 1

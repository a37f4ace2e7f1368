"""Which saves are digested, when the machine reports the digests, and how a save that overwrites one is handled."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from holdfast.agent.checkpoints.comparisons import Comparisons
from holdfast.agent.metrics import Metrics
from holdfast.errors import UnavailableError
from holdfast.models.checkpoint import RestoreOrder, Retention
from holdfast.models.replica import StateDigests
from tests.agent.gateway import eventually

PATH = Path("/shm/r0-a.shard")


class FakeProver:
    """Answers with ``answers`` in turn, then with digests; holds an answer back while ``held``."""

    def __init__(self) -> None:
        self.why_not = ""
        self.asked: list[tuple[int, tuple[int, ...], bool]] = []
        self.answers: list[Any] = []
        self.go = asyncio.Event()
        self.go.set()

    async def digests(self, step: int, shards: dict[int, Path], *, lend: bool) -> StateDigests | None:
        self.asked.append((step, tuple(sorted(shards)), lend))
        await self.go.wait()
        answer = (
            self.answers.pop(0)
            if self.answers
            else StateDigests.of(step, {rank: {"w": 1} for rank in shards})
        )
        if isinstance(answer, Exception):
            raise answer
        return answer


class Machine:
    """One run on it, and its reports."""

    def __init__(self, every: int = 8, *, world_size: int = 4, restored: int = 0, **start: Any) -> None:
        self.prover = FakeProver()
        self.reported: list[StateDigests] = []
        self.metrics = Metrics()
        prover: Any = self.prover
        self.comparisons = Comparisons(
            prover, lambda _, found: self.reported.append(found), self.metrics, every
        )
        self.run: Any = SimpleNamespace(
            running=True,
            start=SimpleNamespace(
                job="gpt",
                ranks=(0, 1),
                world_size=world_size,
                replay=None,
                restore=RestoreOrder(step=restored),
                s3_every_steps=0,
                retention=Retention(),
                **start,
            ),
        )

    async def save(self, *steps: int, ranks: tuple[int, ...] = (0, 1)) -> None:
        """All of its ranks have a save, and what is due for it is done."""
        for step in steps:
            for rank in ranks:
                self.comparisons.saved(self.run, rank, step, PATH)
            if self.prover.go.is_set():
                await self.rest()

    async def rest(self) -> None:
        async def idle() -> bool:
            return not any(job.busy for job in self.comparisons._jobs.values())

        await eventually(idle)

    def count(self, outcome: str) -> int:
        return int(self.metrics.digests.labels(outcome)._value.get())


async def test_first_saves_of_rounds_are_reported_for_all_ranks() -> None:
    """Often at first; a round whose first step was not saved takes the next save."""
    machine = Machine()
    await machine.save(1, 2, 3, 5, 6, 8, 9, 15, 17, 18)
    assert [step for step, _, _ in machine.prover.asked] == [1, 2, 5, 8, 17]
    assert [each.step for each in machine.reported] == [1, 2, 5, 8, 17]
    assert {ranks for _, ranks, _ in machine.prover.asked} == {(0, 1)}


async def test_steps_count_from_what_was_restored() -> None:
    """So that an epoch begins with some rounds, wherever it resumes, once it has settled."""
    machine = Machine(restored=1000)
    await machine.save(1001, 1002, 1007, 1008, 1009, 1016)
    assert [each.step for each in machine.reported] == [1008, 1016]


async def test_not_before_all_ranks_of_the_machine_have_it() -> None:
    """And a round in which one is missing is left out."""
    machine = Machine()
    await machine.save(1, ranks=(0,))
    assert not machine.prover.asked
    await machine.save(2)
    assert [each.step for each in machine.reported] == [2]


async def test_what_was_overwritten_is_held_still_from_then_on() -> None:
    """It costs memory, so not before it is needed."""
    machine = Machine()
    machine.prover.answers = [None]
    await machine.save(1, 2, 4)
    assert [lend for _, _, lend in machine.prover.asked] == [False, True, True]
    assert [each.step for each in machine.reported] == [2, 4]
    assert (machine.count("overwritten"), machine.count("told")) == (1, 2)


async def test_a_round_that_comes_while_the_last_one_is_read_is_left_out() -> None:
    """Nothing queues up."""
    machine = Machine()
    machine.prover.go.clear()
    await machine.save(1)
    await asyncio.sleep(0)
    await machine.save(2, 4)
    machine.prover.go.set()
    await machine.rest()
    await machine.save(8)
    assert [each.step for each in machine.reported] == [1, 8]


async def test_failures_are_counted_and_end_nothing() -> None:
    """The next round is announced again."""
    machine = Machine()
    machine.prover.answers = [UnavailableError("killed"), ValueError("a bug")]
    await machine.save(1, 2, 4)
    assert [each.step for each in machine.reported] == [4]
    assert machine.count("failed") == 2


async def test_nothing_is_read_where_nothing_can_be_compared() -> None:
    """One rank; switched off; a machine without torch."""
    for machine in (Machine(world_size=1), Machine(every=0)):
        await machine.save(1, 2, 3, 4)
        assert not machine.prover.asked
    machine = Machine()
    machine.prover.why_not = "no torch"
    await machine.save(1)
    assert not machine.prover.asked

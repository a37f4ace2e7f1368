"""Ranks of a job of two machines that are held at step boundaries, in the place of agents."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable

import pytest

from holdfast.models.agent import AgentState, Hold, JobOnMachine, RankPhase, RankState
from holdfast.models.checkpoint import Shard, Tier
from holdfast.models.machine import Machine
from holdfast.operations import fleet
from holdfast.operations.context import Context
from tests.tasks.two_machines import JOB


class Ranks:
    """Two ranks that share a collective in each step, and go on while the machines are asked and ordered.

    Args:
        monkeypatch: puts it in the place of the agents.
        pace: steps that they do, where no order holds them, before each machine gets an order.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, pace: Callable[[], int]) -> None:
        self.steps = {"m0": 10, "m1": 10}
        self.hold_at: dict[str, int | None] = {"m0": None, "m1": None}
        self.orders: list[int | None] = []
        self.left_out = set[int]()
        """Steps that m1 does not save."""
        self.saves = (0, 1)
        """A step that is saved, and steps between two of these."""
        self.step_s = 0.0
        self.past: int | None = None
        """The step at whose end m0 looks for no order any more: it is in its next one, for which it needs m1."""
        self.late_looks = 0
        """Answers of machines, from now on, in which ranks are where they were, held, though they were let go."""
        self.looked: list[tuple[str, str, int]] = []
        """Machines that were asked for their shards of one step, with its job and number."""
        self._pace = pace
        monkeypatch.setattr(fleet, "ask", self.ask)

    async def ask(
        self,
        _ctx: Context,
        machines: Iterable[Machine],
        command: Callable[[object, Machine], Awaitable[object]],
    ) -> dict[str, object]:
        answers: dict[str, object] = {}
        for machine in machines:
            self._asked = machine.name
            answers[machine.name] = await command(self, machine)
        return answers

    async def hold(self, order: Hold) -> None:
        for _ in range(self._pace()):
            self._step()
        self.orders.append(order.at_step)
        self.hold_at[self._asked] = order.at_step

    async def state(self, *, shards: bool = True, saved: tuple[str, int] | None = None) -> AgentState:
        if saved is not None:
            self.looked.append((self._asked, *saved))
        late, self.late_looks = self.late_looks > 0, max(0, self.late_looks - 1)
        if not late:
            self._step()
        number = int(self._asked[1:])
        step, paused = self.steps[self._asked], late or self._held(self._asked)
        saves_at, saves_every = self.saves
        rank = RankState(
            rank=number,
            pid=1,
            phase=RankPhase.RUNNING,
            step=step,
            step_s=self.step_s,
            paused=paused,
            saves_at=saves_at,
            saves_every=saves_every,
        )
        run = JobOnMachine(job=JOB, epoch=1, ranks=(rank,))
        steps = [each for each in range(1, step + 1) if number == 0 or each not in self.left_out]
        shard = Shard(
            job=JOB,
            rank=number,
            step=steps[-1],
            epoch=1,
            machine=self._asked,
            tier=Tier.MEMORY,
            nbytes=1,
            digest="",
        )
        held = (shard,) if shards and saved in {None, (JOB, shard.step)} else ()
        return AgentState(machine=self._asked, incarnation="boot-1", jobs=(run,), shards=held)

    def _held(self, name: str) -> bool:
        at = self.hold_at[name]
        past = name == "m0" and self.steps[name] == self.past
        return at is not None and self.steps[name] >= at and not past

    def _step(self) -> None:
        """One step of each rank that is not held, and whose collective the other is not behind with."""
        behind = min(self.steps.values())
        if behind == self.past and self._held("m1"):
            return
        for name in self.steps:
            if not self._held(name) and self.steps[name] == behind:
                self.steps[name] += 1

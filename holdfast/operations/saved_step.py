"""Looks at one step of a job on its machines, while all its ranks wait at the boundary after it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from holdfast.errors import HoldfastError
from holdfast.models.agent import AgentState
from holdfast.models.job import Job
from holdfast.models.machine import Machine
from holdfast.operations import fleet
from holdfast.operations.context import Context


class SavedStep:
    """One step of the present epoch, as far as machines have its shards.

    Ranks wait while it is looked at, and there may be a thousand machines: a look asks for shards of this step alone,
    and no machine again that has shown those of all its ranks, for ranks that are held overwrite none.
    """

    def __init__(self, ctx: Context, job: Job, step: int) -> None:
        self._ctx = ctx
        self._job = job
        self._step = step
        self._machines = ctx.ledger.machines_named(job.machines)
        self._ranks = set[int]()
        self.states: dict[str, AgentState] = {}
        """The newest answer of each of the job's machines that sent one."""

    @property
    def is_whole(self) -> bool:
        """Whether the shards of all ranks were seen."""
        return self._ranks.issuperset(range(self._job.spec.world_size))

    async def look(self, beside: Sequence[Machine] = ()) -> dict[str, AgentState | HoldfastError]:
        """Look once; return the answers of the machines ``beside``, which are not the job's.

        Raises:
            HoldfastError: the first of the job's machines that failed, otherwise than by silence.
        """
        machines, wanted = [*self._missing(), *beside], (self._job.name, self._step)
        answers = await fleet.ask(self._ctx, machines, lambda agent, _: agent.state(saved=wanted))
        others = {machine.name: answers.pop(machine.name) for machine in beside}
        answered = fleet.all_but_silent(answers)
        self.states |= answered
        self._ranks |= self.ranks_in(answered.values())
        return others

    def ranks_in(self, states: Iterable[AgentState]) -> set[int]:
        """Return the ranks whose shard of the step, saved by the present epoch, is among ``states``."""
        wanted = (self._job.name, self._job.epoch, self._step)
        return {
            shard.rank
            for state in states
            for shard in state.shards
            if (shard.job, shard.epoch, shard.step) == wanted
        }

    def _missing(self) -> list[Machine]:
        per = self._job.spec.ranks_per_machine
        return [
            machine
            for slot, machine in enumerate(self._machines)
            if machine.name not in self.states
            or not self._ranks.issuperset(range(slot * per, (slot + 1) * per))
        ]

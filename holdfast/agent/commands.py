"""Commands of playbooks and the gateway to an agent: fences, starts, saves, checks, and questions about its state."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from holdfast.agent.checkpoints.memory import Memory
from holdfast.agent.checkpoints.mirror import Mirrors
from holdfast.agent.checkpoints.proofs import proofs
from holdfast.agent.checkpoints.prover import Prover
from holdfast.agent.checkpoints.uploads import Uploads
from holdfast.agent.diagnostics import flight_files
from holdfast.agent.diagnostics.warm_checks import Bench
from holdfast.agent.inspection import Inspector
from holdfast.agent.ranks.forkserver import ForkServer
from holdfast.agent.ranks.jobs import RunningJobs
from holdfast.agent.ranks.rank_logs import RankLogs
from holdfast.agent.ranks.reactions import Watch
from holdfast.agent.ranks.run import Run
from holdfast.agent.ranks.staging import Staging
from holdfast.agent.roles.supervisor import Supervisor
from holdfast.errors import RefusedError, StaleError
from holdfast.models import agent as messages
from holdfast.models.alert import Finding
from holdfast.models.rehearsal import Rehearsal

_PATIENCE_S = 10.0
"""The longest that an answer is held back."""


class Commands:
    """Passes each command to the part of :class:`~holdfast.agent.daemon.Agent` that does it."""

    machine: str
    incarnation: str
    folder: Path
    memory: Memory
    forks: ForkServer
    jobs: RunningJobs
    roles: Supervisor
    _home: Path
    _ranks: int
    """Ranks per machine that the newest job wants."""
    _supply: Staging
    _watch: Watch
    _mirrors: Mirrors
    _uploads: Uploads
    _prover: Prover
    _rank_logs: RankLogs
    _inspector: Inspector
    _bench: Bench
    _vitals: Callable[[], messages.Vitals]

    async def fence(self, command: messages.Fence) -> list[int]:
        """Stop ranks up to an epoch, and report the steps that they did since the last heartbeat."""
        self._check(command.incarnation)
        run = self.jobs.runs.get(command.job)
        stopped = await self.jobs.fence(command)
        fenced = run is not None and run.start.replay is None and run.start.epoch <= command.epoch
        if run is not None and fenced and (marks := run.snapshot().marks):
            self._watch.report(run, started=marks)
        return stopped

    async def forget(self, command: messages.Fence) -> None:
        """Drop all that is left of a job that ended with an epoch."""
        self._check(command.incarnation)
        await asyncio.gather(self.jobs.forget(command.job, command.epoch), self.roles.forget(command.job))

    async def settle(self, command: messages.Fence) -> messages.Settled:
        """Fence, then return what the next start is planned from, in one answer: there may be a thousand machines."""
        # A start follows, which waits until they are gone: their end takes a moment that planning takes, too.
        self._bench.end_idle()
        await self.fence(command)
        return messages.Settled(
            state=await self.state(),
            code=self._supply.versions(command.job),
            kept=self.jobs.survivors.waiting(command.job),
            not_kept=self.jobs.not_kept.get(command.job, {}),
        )

    async def open_rendezvous(self, command: messages.OpenRendezvous) -> messages.Rendezvous:
        """Host the store of an epoch."""
        self._check(command.incarnation)
        return await self.jobs.open_rendezvous(command)

    async def start(self, command: messages.Start) -> list[messages.RankState]:
        """Start this machine's ranks."""
        self._check(command.incarnation)
        self._ranks = len(command.ranks)
        await self._bench.clear()
        return await self.jobs.start(command)

    async def start_ahead(self, command: messages.Ahead) -> messages.Waiting:
        """Start ranks of the next epoch beside the present ones.

        Raises:
            RefusedError: their models would take GPU memory that training needs.
        """
        self._check(command.start.incarnation)
        if not command.on_gpus and self._vitals().gpu_busy is not None:
            raise RefusedError(
                f"machine {self.machine} has GPUs: two epochs' models beside one another may not fit "
                "(planned_move.ahead_on_gpus)"
            )
        return await self.jobs.start_ahead(command)

    async def mirror(self, command: messages.Mirror) -> None:
        """Send what the ranks save to one more machine."""
        self._check(command.incarnation)
        self.jobs.run(command.job, command.epoch)
        self._mirrors.order(command)

    async def hold(self, command: messages.Hold) -> None:
        """Hold ranks at a boundary, or let them go."""
        self._check(command.incarnation)
        self.jobs.hold(command)

    async def persist(self, command: messages.Persist) -> None:
        """Have shards of a step that is in memory uploaded."""
        self._check(command.incarnation)
        await self._uploads.persist(command)

    async def prove(self, command: messages.Prove) -> list[Rehearsal]:
        """Prove a job's shards on this machine, or one checkpoint in S3, now."""
        self._check(command.incarnation)
        return await proofs(command, self._prover, self._watch.rehearsals, self.jobs.runs.get(command.job))

    async def prepare_code(self, command: messages.PrepareCode) -> None:
        """Have a code version checked out."""
        self._check(command.incarnation)
        self._ranks = command.ranks or self._ranks
        await self._supply.code(command.job, command.version, command.neighbours)

    async def code_archive(self, job: str, version: str) -> bytes:
        """Return the archive of a code version that is checked out here."""
        return await self._supply.archive(job, version)

    async def diagnose(self, command: messages.Diagnose) -> list[Finding]:
        """Run one stop-time check."""
        self._check(command.incarnation)
        from holdfast.agent.diagnostics import baseline, machine_checks  # noqa: PLC0415  (seldom needed)

        found = await machine_checks.run_check(
            command,
            self.forks.run,
            machine=self.machine,
            inspector=self._inspector,
            bench=self._bench,
            beside=any(run.running for run in self.jobs.runs.values()),
        )
        return await asyncio.to_thread(baseline.compared, found, self.folder / "baseline.json")

    async def command(self, command: messages.Command) -> dict[str, Any]:
        """Run a command of another package on this machine."""
        self._check(command.incarnation)
        from holdfast.agent.diagnostics import plugged  # noqa: PLC0415  (seldom needed)

        return await plugged.command(command, self.machine, self._home)

    async def stacks(self, job: str, epoch: int) -> list[messages.StackDump]:
        """Return stacks of the rank processes of a job and of their children."""
        from holdfast.agent.diagnostics import stacks  # noqa: PLC0415  (seldom needed)

        run = self.jobs.run(job, epoch)
        alive = {rank: process.pid for rank, process in run.processes.items() if not process.gone.done()}
        ended = {rank: self._rank_logs.ended_part(run, rank) for rank in alive}
        before = run.steps()
        dumped = await stacks.dump(self.machine, alive)
        step = {rank: at for rank, at in run.steps().items() if before.get(rank) == at}
        return [
            each.model_copy(update={"ended": ended[each.rank], "step": step.get(each.rank)})
            if each.rank is not None and stacks.of_main_thread(each)
            else each
            for each in dumped
        ]

    async def flight_records(self, job: str, epoch: int) -> list[messages.FlightRecord]:
        """Return the recorded collectives of a job's ranks; live ranks are asked to write them now."""
        from holdfast.agent.diagnostics import flight  # noqa: PLC0415  (seldom needed)

        run = self.jobs.run(job, epoch)
        ranks = {rank: 0 if known.gone.done() else known.pid for rank, known in run.processes.items()}
        watchdog = flight_files.watchdog_files(run.flight_folder, run.start.env)
        return await flight.collect(run.flight_folder, ranks, watchdog=watchdog, since=run.since)

    async def state(
        self, *, shards: bool = True, saved: tuple[str, int] | None = None
    ) -> messages.AgentState:
        """Return everything the agent knows; with ``saved``, a job and a step, no shards but those of that step."""
        return messages.AgentState(
            machine=self.machine,
            incarnation=self.incarnation,
            jobs=self._snapshots(),
            shards=await asyncio.to_thread(self.memory.shards, saved) if shards else (),
            replicas=self.roles.states(),
            fences=dict(self.jobs.fences),
            warm=self.forks.warm,
            spares_missing=max(0, self._spares_wanted() - self.forks.waiting),
            info={"pid": os.getpid(), "logs": str(self.folder / "logs")},
        )

    async def first_steps(self, job: str, epoch: int, patience_s: float) -> messages.JobOnMachine:
        """Return the ranks of an epoch, once each made a step of it or one failed; at most ``patience_s`` later."""
        run = self.jobs.run(job, epoch)
        await run.moves(min(patience_s, _PATIENCE_S))
        return run.snapshot()

    def _snapshots(self) -> tuple[messages.JobOnMachine, ...]:
        return tuple(
            run.snapshot().model_copy(update=self._watch.save_fields(run)) for run in self._training()
        )

    def _training(self) -> list[Run]:
        return [run for run in self.jobs.runs.values() if run.start.replay is None]

    def _spares_wanted(self) -> int:
        """Return the need of a recovery: the ranks, those of the checks inside and between machines, two stores."""
        return 2 * self._ranks + 4

    def _check(self, incarnation: str) -> None:
        if incarnation != self.incarnation:
            raise StaleError(
                f"machine {self.machine}: command for incarnation {incarnation!r}, this is {self.incarnation!r}"
            )

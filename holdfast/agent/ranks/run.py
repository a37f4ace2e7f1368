"""One run: the ranks of one job and one epoch on this machine, from their fork to the last one's end."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path

from holdfast.agent import wire
from holdfast.agent.checkpoints.memory import Memory
from holdfast.agent.diagnostics import flight_files, meeting
from holdfast.agent.ranks import (
    extension_locks,
    gloo_interface,
    rank_environment,
    rank_report,
    survivors,
    torch_files,
)
from holdfast.agent.ranks.forkserver import ForkServer
from holdfast.agent.ranks.handed import hand
from holdfast.agent.ranks.processes import Watched, stop
from holdfast.agent.ranks.rank_main import RankOrder, run_rank
from holdfast.agent.ranks.rank_table import RankEvents, RankTable
from holdfast.agent.ranks.remains import Remains
from holdfast.agent.ranks.restored import Restored
from holdfast.agent.ranks.scratch import Scratch
from holdfast.models.agent import JobOnMachine, RankResult, RankState, Start
from holdfast.models.base import SWITCH_S
from holdfast.models.roles import TRAINER
from holdfast.policies.config.thresholds import MetricLimits
from holdfast.roles import ENV_INDEX


class Run:
    """Call :meth:`launch` once, then :meth:`stop` at some time; everything else only looks."""

    def __init__(
        self,
        start: Start,
        machine: str,
        folder: Path,
        memory: Memory,
        limits: MetricLimits | None = None,
        *,
        remains: Remains | None = None,
        scratch: Scratch | None = None,
        ahead: bool = False,
        role_of: Callable[[str, str, int, int], Mapping[str, str]] | None = None,
    ) -> None:
        """``ahead``: the ranks wait for the place of their state, whatever place ``start`` has; ``role_of`` returns
        the variables by which a process knows its job's roles."""
        self.start = start
        self.machine = machine
        self.folder = folder
        """The machine's folder."""
        self.code = ""
        """Folder of the job's code as its processes see it, without links."""
        self.controls: dict[int, wire.Control] = {}
        self.processes: dict[int, Watched] = {}
        self.board: RankTable | None = None
        self._memory = memory
        self._limits = limits
        self._remains = remains
        self._scratch = scratch
        self._ahead = ahead
        self._role_of = role_of
        # Made once, not for each rank.
        self._logs = folder / "logs" / start.job
        self._controls = str(memory.root / "control" / f"{self.name}-r")
        self._shards = memory.own(start.job)
        self.flight_folder = self._logs / f"e{start.epoch}-flight"
        """Folder of the ranks' flight recordings, named by their rank."""
        self.since = self._made_at = time.time()
        self.names = [self.name]
        """Names of this run, and of earlier ones whose processes it has: what these left may bear any of them."""
        self.outlived: dict[int, Watched] = {}
        """Processes that were kept when it was stopped."""
        self.not_kept: dict[int, str] = {}
        """Ranks whose process might have been kept when it was stopped, and why it was not."""
        self.why_new: dict[int, str] = {}
        """Ranks that have a new process though that of the epoch before was kept, and why."""
        self.lost: dict[int, Watched] = {}
        """Processes that were killed at the order to leave, or to begin this epoch: their end is no longer expected."""
        self._passed_over: dict[int, tuple[str, ...]] = {}
        """Ranks whose state comes from another source than was planned, and why."""
        self._inherited: dict[int, tuple[Watched, str]] = {}
        self._interface = ""
        """For gloo, where it finds none that other machines reach."""
        self._left: set[int] = set()
        """Pids of what its ranks left behind and was ended."""
        self._on_exit: Callable[[Run, Watched], None] = lambda _run, _process: None

    @property
    def name(self) -> str:
        """For files: unique among runs of this machine."""
        return f"{self.start.job}-e{self.start.epoch}"

    @property
    def running(self) -> bool:
        """Whether any rank still runs."""
        return any(not process.gone.done() for process in self.processes.values())

    def log(self, rank: int) -> Path:
        """Return the log file of a rank."""
        return self._logs / f"e{self.start.epoch}-r{rank}.log"

    async def launch(
        self,
        forks: ForkServer,
        code: Path,
        events: RankEvents,
        on_exit: Callable[[Run, Watched], None],
    ) -> None:
        """Fork all ranks; when it raises, none is left. They wait for their tickets when they call restore.

        Raises:
            UnavailableError: something that an earlier agent left cannot be ended.
        """
        if self._remains is not None:
            await self._remains.clear()
        self._on_exit = on_exit
        self.code = os.path.realpath(code)
        socket = self._memory.root / "sock" / self.name
        self.board = RankTable(socket, self.start.epoch, self.start.ranks, events, self._limits)
        for folder in (self.flight_folder, os.path.dirname(self._controls), self._shards):
            os.makedirs(folder, exist_ok=True)
        group = self._remains.open(self.name) if self._remains is not None else ""
        try:
            self._interface = await gloo_interface.of_ranks(self.start)
            orders = {rank: self._order(rank, code, group) for rank in self.start.ranks}
            kept = self._go_on(orders)
            for rank in self.start.ranks:
                if rank not in self.processes or self.processes[rank].gone.done():
                    await self._fork(forks, orders[rank])
            late = await survivors.late(kept, self.board.rows, self.start.switch_s)
            late = [
                rank for rank in late if self.processes[rank] is kept[rank]
            ]  # else a new one is there already
            for rank in kept.keys() - late:
                self.board.rows[rank].joined = self.processes[rank] is kept[rank]
                self.processes[rank].watch(self._exited)
            for rank in late:
                if not await self._is_given_up(self.processes[rank], self.board):
                    continue
                await self._fork(forks, orders[rank])
        except BaseException:
            await self.stop()
            raise

    async def _is_given_up(self, process: Watched, board: RankTable) -> bool:
        """End a process that was kept and is late; return whether another one may take its place.

        Not of one that joins after all, while others are replaced: other ranks may have met it already, and would wait
        for it.
        """
        row, why = board.rows[process.rank], survivors.why_replaced(process, self.start.switch_s)
        board.drain()
        if row.spoke and not process.gone.done():
            row.joined = True
            process.watch(self._exited)
            return False
        if not row.spoke:
            if process.gone.done():
                self.lost[process.rank] = process
            await stop([process])
            board.drain()
        if row.spoke:  # its last words
            self._exited(process)
            return False
        self.why_new[process.rank] = why
        return True

    async def _fork(self, forks: ForkServer, order: RankOrder) -> None:
        process = await forks.run_soon(run_rank, (order,))
        self.processes[order.rank] = watched = Watched(process, order.rank, self._exited)
        watched.gone.add_done_callback(self._ended)

    def inherit(self, before: Run) -> None:
        """Have the processes that outlived another run go on in this one; call it before :meth:`launch`."""
        self._inherited = {
            rank: (process, before._control_path(rank)) for rank, process in before.outlived.items()
        }
        self.processes |= before.outlived
        self.names = [*before.names, self.name]
        self._made_at = before._made_at

    def _go_on(self, orders: Mapping[int, RankOrder]) -> dict[int, Watched]:
        """Have inherited processes that live begin this epoch; return them."""
        alive = {rank: each for rank, (each, _) in self._inherited.items() if not each.gone.done()}
        for rank, (process, control) in self._inherited.items():
            if rank in alive:
                process.watch(None)  # until it has begun this epoch, or is given up
                process.gone.add_done_callback(self._ended)
                survivors.order(control, orders[rank])
            else:
                self.why_new[rank] = survivors.why_lost(process)
        return alive

    def begin(self, start: Start, on_exit: Callable[[Run, Watched], None]) -> None:
        """Make ranks that were started ahead those of ``start``: from now on they count as just started."""
        self.start = start
        self.since = time.time()
        self._on_exit = on_exit
        for row in self.board.rows.values() if self.board else ():
            row.step_at = self.since

    def steps(self) -> dict[int, int]:
        """Return the newest step of each rank that completed one since it was started."""
        if self.board is None:
            return {}
        self.board.drain()
        return {rank: row.step for rank, row in self.board.rows.items() if row.steps_done}

    def hand_over(self, rank: int, restored: Restored) -> None:
        """Write a waiting rank the ticket with its state's place."""
        if restored.passed_over:
            self._passed_over[rank] = restored.passed_over
        hand(self._ticket_path(rank), asdict(restored))

    async def stop(
        self,
        *,
        alone: Callable[[], bool] = lambda: False,
        grace_s: float = 0.0,
        keep: bool = False,
        switch_s: float = SWITCH_S,
    ) -> list[int]:
        """End every rank and all that ranks left behind; return the ranks that still ran.

        With ``keep``, processes of ranks that allow it are :attr:`outlived`: they are out of their training within
        ``switch_s``, and wait.

        Args:
            alone: whether no other job has ranks on this machine, or is being given some: a process that gave up its
                environment is this job's then.
            grace_s: ranks that handle SIGTERM get that first, and so many seconds.

        Raises:
            UnavailableError: something of it does not die; the next call tries again.
        """
        running = [rank for rank, process in self.processes.items() if not process.gone.done()]
        allow = [rank for rank in running if self.board is not None and self.board.rows[rank].keeps]
        self.outlived = {}
        worn: dict[int, str] = {}
        if keep and self.board is not None:
            for process in self.processes.values():
                process.expect()  # however it ends from now on
            worn = {rank: old for rank in allow if (old := survivors.worn_out(self.processes[rank].pid))}
            fresh = {rank: process for rank, process in self.processes.items() if rank not in worn}
            self.outlived = await survivors.leave(fresh, self.board.rows, self._control_path, switch_s)
        late = {
            rank: self.processes[rank] for rank in allow if rank not in self.outlived and rank not in worn
        }
        if keep:
            self.not_kept = worn | await survivors.why_not_left(late)
        else:
            self.not_kept = dict.fromkeys(late, "the playbook starts all processes again")
        others = [process for rank, process in self.processes.items() if rank not in self.outlived]
        self.lost = {each.rank: each for each in others if survivors.was_killed(each)}
        stopped = sorted({*await stop(others, grace_s), *(rank for rank in self.outlived if rank in running)})
        if self._remains is not None:
            spared = [process.pid for process in self.outlived.values()]
            for name in self.names:
                self._left |= set(await self._remains.end(name, alone=alone, spared=spared))
        await asyncio.to_thread(self._remove_files)
        self.close()
        return stopped

    def _remove_files(self) -> None:
        pids = self._left.union(*(process.family for process in self.processes.values()))
        torch_files.remove(pids, self._made_at)
        extension_locks.remove({**os.environ, **self.start.env}, self._made_at)
        if self._scratch is not None and not self.outlived:
            for name in self.names:
                self._scratch.remove(name)

    def close(self) -> None:
        """Close sockets and control pages of a run without processes."""
        if self.board is not None:
            self.board.drain()
            self.board.close()
        for rank, control in self.controls.items():
            control.close()
            for path in (self._control_path(rank), self._ticket_path(rank)):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(path)
        ended = [self._control_path(rank) for rank in self.controls if rank not in self.outlived]
        survivors.remove_files([*ended, *(control for _, control in self._inherited.values())])

    def allowed(self, rank: int) -> frozenset[str] | None:
        """Return classes that the rank's script allows in checkpoints; None: it did not report them."""
        return self.board.rows[rank].allows if self.board else None

    def states(self) -> tuple[RankState, ...]:
        """Return the state of every rank."""
        return tuple(self._state(process) for process in self.processes.values())

    def snapshot(self) -> JobOnMachine:
        """Return the run's state for heartbeats and ``/v1/state``."""
        rows = self.board.rows.values() if self.board else ()
        return JobOnMachine(
            job=self.start.job,
            epoch=self.start.epoch,
            ranks=self.states(),
            marks=tuple(self.board.marks) if self.board else (),
            times=tuple(self.board.times) if self.board else (),
            replicated_step=min((row.replicated_step for row in rows), default=0),
            shard_nbytes=max((row.shard_nbytes for row in rows), default=0),
            saved_step=max((row.saved_step for row in rows), default=0),
        )

    async def moves(self, patience_s: float) -> None:
        """Wait until every rank has made a step or ended well, or one failed; ``patience_s`` at most."""
        assert self.board is not None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience_s):
                while not self._judged(self.board):
                    self.board.news.clear()
                    await self.board.news.wait()

    def _judged(self, board: RankTable) -> bool:
        """Return whether it is known how the start went."""
        if any(process.exit_code for process in self.processes.values()):
            return True
        return all(
            board.rows[rank].steps_done or process.exit_code == 0 for rank, process in self.processes.items()
        )

    def _exited(self, process: Watched) -> None:
        self._on_exit(self, process)

    def _ended(self, _gone: asyncio.Future[int]) -> None:
        if self.board is not None:
            self.board.news.set()

    def hold(self, at_step: int | None) -> None:
        """Have all ranks wait after ``at_step``, or let them go."""
        for control in self.controls.values():
            control.hold_at_step = wire.NO_HOLD if at_step is None else at_step

    def results(self) -> list[RankResult] | None:
        """Return how the ranks of a replay ended; None while some still run."""
        if self.running:
            return None
        assert self.board is not None
        rows, processes = self.board.rows, self.processes.values()
        return [rank_report.result(process, rows[process.rank], self.machine) for process in processes]

    def log_tail(self, rank: int) -> str:
        """Return the end of a rank's log, enough for what stands before the stacks of its threads."""
        return rank_report.log_tail(self.log(rank))

    def _state(self, process: Watched) -> RankState:
        assert self.board is not None
        rank = process.rank
        found = rank_report.state(process, self.board.rows[rank], self.log(rank), self.why_new.get(rank, ""))
        passed_over = self._passed_over.get(rank)
        return found.model_copy(update={"passed_over": passed_over}) if passed_over else found

    def _control_path(self, rank: int) -> str:
        return f"{self._controls}{rank}"

    def _ticket_path(self, rank: int) -> str:
        return f"{self._controls}{rank}.ticket"

    def _order(self, rank: int, code: Path, group: str) -> RankOrder:
        path = self._control_path(rank)
        self.controls[rank] = wire.Control(path, create=True)
        assert self.board is not None
        return RankOrder(
            rank=rank,
            epoch=self.start.epoch,
            script=self.start.script,
            args=self.start.args,
            cwd=str(code),
            log=str(self.log(rank)),
            socket=str(self.board.path),
            env=rank_environment.torchrun(self.start, rank) | self._environment | self._environment_of(rank),
            group=group,
        )

    def _environment_of(self, rank: int) -> dict[str, str]:
        restore = self.start.restore
        ticket = self._ticket_path(rank) if restore.has_state or self._ahead else ""
        return {
            ENV_INDEX: str(rank),
            wire.ENV_CONTROL: self._control_path(rank),
            wire.ENV_RESTORE: json.dumps({"step": restore.step, "ticket": ticket}),
        }

    @functools.cached_property
    def _environment(self) -> dict[str, str]:
        """Environment of every rank."""
        start = self.start
        own = rank_environment.of_job(start)
        env = own if self._scratch is None else own | self._scratch.open(self.name, own)
        env |= rank_environment.of_session(
            start,
            machine=self.machine,
            socket=str(self.board.path) if self.board else "",
            shards=str(self._shards),
        )
        if self._role_of is not None and start.replay is None:
            env |= self._role_of(start.job, TRAINER, 0, start.epoch)
        if self._interface:
            env[meeting.INTERFACE] = self._interface
        return env | flight_files.environment(self.flight_folder, own)

"""Commands about jobs: fencing, rendezvous, start, hold. All may be repeated; stale ones are refused."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from holdfast.agent.checkpoints.memory import Memory, base_job
from holdfast.agent.metrics import Metrics
from holdfast.agent.ranks import rendezvous
from holdfast.agent.ranks.ahead import AheadRuns
from holdfast.agent.ranks.forkserver import ForkServer
from holdfast.agent.ranks.processes import Watched, stop, until_gone
from holdfast.agent.ranks.rank_table import RankEvents
from holdfast.agent.ranks.run import Run
from holdfast.agent.ranks.staging import Staging
from holdfast.agent.ranks.survivors import Survivors
from holdfast.errors import StaleError, UnknownError
from holdfast.models.agent import (
    Ahead,
    Fence,
    Hold,
    OpenRendezvous,
    RankResult,
    RankState,
    Rendezvous,
    Start,
    Waiting,
    store_ahead,
)
from holdfast.models.base import MAX_KEEP_S, SWITCH_S

_log = logging.getLogger(__name__)

Brought = TypeVar("Brought")


class RunningJobs:
    """Runs of this machine. Commands of one job take turns; a fence counts from the moment it arrives."""

    def __init__(
        self,
        *,
        forks: ForkServer,
        memory: Memory,
        supply: Staging,
        metrics: Metrics,
        host: str,
        make_run: Callable[[Start], Run],
        events: Callable[[Run], RankEvents],
        on_exit: Callable[[Run, Watched], None],
        on_lost: Callable[[Run, Watched], None],
        make_ahead: Callable[[Start], Run] | None = None,
    ) -> None:
        """``on_lost``: a process that was to be kept ended by itself between its epoch and the next one.

        ``make_ahead`` makes a run whose ranks wait at their restore; None: as ``make_run``.
        """
        self.runs: dict[str, Run] = {}
        self.fences: dict[str, int] = {}
        self.not_kept: dict[str, dict[int, str]] = {}
        """By job, ranks whose process might have been kept for the next epoch and was ended, with the reason."""
        self._stores: dict[str, tuple[int, Watched, int]] = {}  # job -> epoch, process, port
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._fencing: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
        """Set, by job, for a start that fetches state: a fence came."""
        self._forks = forks
        self._memory = memory
        self._supply = supply
        self._metrics = metrics
        self._host = host
        self._make_run = make_run
        self._events = events
        self._on_exit = on_exit
        self._on_lost = on_lost
        self._make_ahead = make_ahead or make_run
        self._starts = 0
        """Those under way, whose ranks no run has yet."""
        self.replicas_here: Callable[[], bool] = lambda: False
        """Whether replicas of roles are on this machine: what they started may have no mark."""
        self.survivors = Survivors(
            lambda run: run.stop(alone=self._alone(run.start.job)), lambda job: self._locks[job], on_lost
        )
        self.ahead = AheadRuns(self._launch_ahead, self._end_ahead, self._forget_unused)

    async def fence(self, command: Fence) -> list[int]:
        """Stop every rank up to the epoch and wait until they are gone; return those that still ran.

        A replay is stopped but not fenced off: it saves nothing, and the next attempt may need it again.
        """
        begun = time.perf_counter()
        if base_job(command.job) == command.job:
            self.fences[command.job] = max(self.fences.get(command.job, 0), command.epoch)
            self._fencing[command.job].set()
        async with self._locks[command.job]:
            stopped = await self._end(
                command.job, command.epoch, command.grace_s, command.keep_s, command.switch_s
            )
            await self.ahead.fence(command.job, command.epoch)
            for name in [name for name in self._stores if base_job(name) == command.job]:
                await self._end_store(name, command.epoch, wait=False)  # where machines met for checks
        self._metrics.fence_seconds.observe(time.perf_counter() - begun)
        return stopped

    async def open_rendezvous(self, command: OpenRendezvous) -> Rendezvous:
        """Host the store of an epoch, or return where it is."""
        async with self._locks[f"{command.job} store"]:
            self.refuse_stale(command.job, command.epoch)
            epoch, process, port = self._stores.get(command.job, (0, None, 0))
            if process is None or epoch != command.epoch or process.gone.done():
                await self._end_store(command.job, command.epoch)
                forked, port = await rendezvous.open_store(self._forks, self._host)
                self._stores[command.job] = (command.epoch, Watched(forked, -1), port)
        if self.fences.get(command.job, 0) >= command.epoch:
            await self._end_store(command.job, command.epoch)
        self.refuse_stale(command.job, command.epoch)
        return Rendezvous(host=self._host, port=port)

    async def start(self, command: Start) -> list[RankState]:
        """Fork this machine's ranks of an epoch; stop an older epoch's first."""
        begun = time.perf_counter()
        self.refuse_stale(command.job, command.epoch)
        if (running := self._same(command)) is not None:
            return list(running.states())
        code = await self._supply.code(command.job, command.code_version)
        async with self._locks[command.job]:
            self.refuse_stale(command.job, command.epoch)
            if (running := self._same(command)) is not None:
                return list(running.states())
            keep_s = MAX_KEEP_S if command.keep else 0.0
            await self._end(command.job, command.epoch - 1, keep_s=keep_s, switch_s=command.switch_s)
            if command.replay is None:
                await self._end_replays(command.job)
            else:  # it needs the memory
                await self.survivors.end(base_job(command.job), command.epoch)
            waiting = await self.ahead.take(command) if command.replay is None else None
            if command.replay is None:
                self._memory.place(command.job, command.first_tier)
                # First: no copy of an older epoch comes after these were looked for.
                self._memory.accept_from[command.job] = command.epoch
                self._memory.resume_after(command.job, command.restore.step)
            if waiting is not None:
                run = waiting
                await self._take_over(run, command)
            else:
                run = self._make_run(command)
                before, run.why_new = await self.survivors.take(command)
                self.not_kept.pop(command.job, None)
                if before is not None:
                    run.inherit(before)
                await self._launch(run, code)
                for process in run.lost.values():
                    self._on_lost(before or run, process)
            self.runs[command.job] = run
        self._metrics.start_seconds.observe(time.perf_counter() - begun)
        return list(run.states())

    async def start_ahead(self, command: Ahead) -> Waiting:
        """Fork this machine's ranks of the next epoch beside those of the present one, and have them wait."""
        start = command.start
        self.refuse_stale(start.job, start.epoch)
        if (running := self._same(start)) is not None:
            raise StaleError(f"job {start.job!r}: epoch {running.start.epoch} runs here already")
        self._memory.place(start.job, start.first_tier)
        return await self.ahead.keep(command)

    def hold(self, command: Hold) -> None:
        """Hold the ranks after a step, or let them go."""
        self.run(command.job, command.epoch).hold(command.at_step)

    def replay_results(self, job: str, epoch: int) -> list[RankResult] | None:
        """Return how the ranks of a replay ended; None while some still run."""
        return self.run(job, epoch).results()

    async def forget(self, job: str, epoch: int) -> None:
        """Drop everything of a job that ended with ``epoch``.

        The fence is raised, never dropped: the remains of the job may not start again.

        Raises:
            StaleError: the job ran here in a newer epoch.
        """
        self._refuse_if_newer(job, epoch)
        self.fences[job] = max(self.fences.get(job, 0), epoch)
        self._fencing[job].set()
        await self._end_replays(job)
        async with self._locks[job]:
            self._refuse_if_newer(job, epoch)
            ended = self.fences.get(job, 0)
            await self._end(job, ended)
            await self._end_store(job, ended)
            self.not_kept.pop(job, None)
            if ended:
                self._memory.accept_from[job] = ended + 1  # copies that peers still send come too late
            await asyncio.to_thread(self._memory.forget, job)

    def _refuse_if_newer(self, job: str, epoch: int) -> None:
        run, fence = self.runs.get(job), self.fences.get(job, 0)
        newest = max(run.start.epoch if run else 0, fence)
        if newest > epoch:
            raise StaleError(
                f"job {job!r}: epoch {newest} was here since epoch {epoch}: nothing is forgotten"
            )

    def run(self, job: str, epoch: int) -> Run:
        """Return the run of a job's epoch.

        Raises:
            UnknownError: nothing of that job is here.
            StaleError: another epoch of it is.
        """
        found = self.runs.get(job)
        if found is None:
            raise UnknownError(f"no ranks of job {job!r} on this machine")
        if found.start.epoch != epoch:
            raise StaleError(f"job {job!r}: epoch {found.start.epoch} is here, not {epoch}")
        return found

    def live(self, job: str) -> list[tuple[int, int]]:
        """Return the live ranks of a job, each with its epoch."""
        run = self.runs.get(job)
        alive = run.processes.values() if run is not None else ()
        return [(process.rank, run.start.epoch) for process in alive if run and not process.gone.done()]

    def refuse_stale(self, job: str, epoch: int) -> None:
        """Refuse a command for an epoch that was fenced off or overtaken.

        Raises:
            StaleError: it was.
        """
        fence = self.fences.get(job, 0)
        if epoch <= fence:
            raise StaleError(f"job {job!r} epoch {epoch}: epochs up to {fence} are fenced off")
        if (run := self.runs.get(job)) is not None and epoch < run.start.epoch:
            raise StaleError(f"job {job!r} epoch {epoch}: epoch {run.start.epoch} was started since")

    async def stop_all(self) -> None:
        """End every rank and store, as when the agent ends."""
        stores = [process for _, process, _ in self._stores.values()]
        ended = await asyncio.gather(
            stop(stores),
            self.ahead.stop_all(),
            self.survivors.stop_all(),
            *(run.stop(grace_s=run.start.stop_grace_s) for run in self.runs.values()),
            return_exceptions=True,
        )
        for error in ended:
            if isinstance(error, BaseException):
                _log.error("%s", error)

    async def _launch(self, run: Run, code: Path) -> None:
        """Fork the ranks, and meanwhile fetch their state; when either fails, leave no rank.

        Raises:
            CheckpointError: a rank's state is not available from any source.
        """

        async def bring(rank: int) -> None:
            run.hand_over(rank, await self._supply.restored(run.start, rank))

        ranks = run.start.ranks if run.start.restore.has_state else ()
        bringing = asyncio.gather(*(bring(rank) for rank in ranks))
        try:
            with self._starting():
                await run.launch(self._forks, code, self._events(run), self._on_exit)
                await self._brought(run.start, bringing)
        except BaseException:
            bringing.cancel()
            # Its error is the start's, or of no use any more: asyncio would log it as one that was never retrieved.
            bringing.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
            await run.stop(alone=self._alone(run.start.job))
            raise

    async def _brought(self, start: Start, bringing: asyncio.Future[Brought]) -> Brought:
        """Wait for what the ranks of a start resume from, unless it is fenced off: transfers may take minutes.

        A fence is answered in seconds: a machine that does not is taken for lost. Shards that are on their way come,
        and the next start finds them here.

        Raises:
            StaleError: it was fenced off.
            CheckpointError: a rank's state is not available from any source.
        """
        fencing = self._fencing[start.job]
        while not bringing.done():
            fencing.clear()
            self.refuse_stale(start.job, start.epoch)
            fence = asyncio.ensure_future(fencing.wait())
            either: list[asyncio.Future[Any]] = [bringing, fence]
            try:
                await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            finally:
                fence.cancel()
        return await bringing

    async def _take_over(self, run: Run, command: Start) -> None:
        """Hand the state to ranks that wait for it; when it cannot be had, leave no rank.

        Raises:
            CheckpointError: a rank's state is not available from any source.
        """
        run.begin(command, self._on_exit)
        store = self._stores.pop(store_ahead(command.job), None)
        if store is not None:
            self._stores[command.job] = store
        bringing = asyncio.gather(*(self._supply.restored(command, rank) for rank in command.ranks))
        try:
            brought = await self._brought(command, bringing)
            for rank, restored in zip(command.ranks, brought, strict=True):
                run.hand_over(rank, restored)
        except BaseException:
            bringing.cancel()
            await run.stop(alone=self._alone(command.job))
            raise

    async def _launch_ahead(self, start: Start, on_exit: Callable[[Run, Watched], None]) -> Run:
        code = await self._supply.code(start.job, start.code_version)
        run = self._make_ahead(start)
        with self._starting():
            await run.launch(self._forks, code, self._events(run), on_exit)
        return run

    async def _end_ahead(self, run: Run) -> None:
        await run.stop()
        await self._end_store(store_ahead(run.start.job), run.start.epoch)

    async def _forget_unused(self, job: str) -> None:
        """Drop the copies that a machine was sent for ranks that never took over, unless the job is here otherwise."""
        # A machine that ever stopped ranks of the job has a fence, and perhaps shards that its recovery needs.
        if job not in self.runs and job not in self.ahead and job not in self.fences:
            await asyncio.to_thread(self._memory.forget, job)

    def _same(self, command: Start) -> Run | None:
        run = self.runs.get(command.job)
        return run if run is not None and run.start.epoch == command.epoch else None

    async def _end(
        self, job: str, epoch: int, grace_s: float = 0.0, keep_s: float = 0.0, switch_s: float = SWITCH_S
    ) -> list[int]:
        """End the ranks of epochs up to ``epoch``.

        Processes that may be kept for ``keep_s`` only leave theirs, within ``switch_s``.
        """
        await self._end_store(job, epoch)
        if not keep_s:
            await self.survivors.end(job, epoch)
        run = self.runs.get(job)
        if run is None or run.start.epoch > epoch:
            return []
        stopped = await run.stop(alone=self._alone(job), grace_s=grace_s, keep=keep_s > 0, switch_s=switch_s)
        del self.runs[job]
        for process in run.lost.values():
            self._on_lost(run, process)
        if run.not_kept:
            self.not_kept[job] = run.not_kept
        if run.outlived:
            self.survivors.keep(job, run, keep_s)
        return stopped

    def _alone(self, job: str) -> Callable[[], bool]:
        """Return whether all ranks here are of ``job``, its replays counted in, and no replicas are here.

        It is asked by other threads. While ranks start it is never so: they have no mark at first.
        """

        def asked() -> bool:
            if self._starts or self.replicas_here() or base_job(job) in self.ahead:
                return False
            return all(base_job(name) == base_job(job) for name in tuple(self.runs))

        return asked

    @contextmanager
    def _starting(self) -> Iterator[None]:
        self._starts += 1
        try:
            yield
        finally:
            self._starts -= 1

    async def _end_store(self, job: str, epoch: int | None, *, wait: bool = True) -> None:
        """End the job's store if it is of ``epoch`` or older (None: of any); ``wait`` until it is gone."""
        found = self._stores.get(job)
        if found is not None and (epoch is None or found[0] <= epoch):
            del self._stores[job]
            found[1].kill()  # it starts no process: its descendants need no search
            if wait:
                await until_gone([found[1]])

    async def _end_replays(self, job: str) -> None:
        for name in [name for name in self.runs if name != job and base_job(name) == job]:
            async with self._locks[name]:
                if (run := self.runs.get(name)) is not None:
                    await self._end(name, run.start.epoch)

"""Ranks of the next epoch that are started beside those that train, and wait at their restore to take over.

They have loaded their code, met in a rendezvous of their own and made their model; what is left to do when training
stops is to read the state. They save nothing and report nothing before that, and end by themselves when they are not
wanted in time.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from holdfast.agent.ranks.processes import Watched
from holdfast.agent.ranks.run import Run
from holdfast.errors import AheadError, HoldfastError, StaleError
from holdfast.models.agent import Ahead, Start, Waiting
from holdfast.models.checkpoint import RestoreOrder

_log = logging.getLogger(__name__)


@dataclass
class _Kept:
    run: Run
    ends: asyncio.TimerHandle
    turn: int
    """Grows whenever they are kept for longer."""


class AheadRuns:
    """At most one per job. Used on the event loop."""

    def __init__(
        self,
        launch: Callable[[Start, Callable[[Run, Watched], None]], Awaitable[Run]],
        end: Callable[[Run], Awaitable[object]],
        unused: Callable[[str], Awaitable[None]],
    ) -> None:
        """Prepare.

        Args:
            launch: forks the ranks; the second argument is called with each that ends by itself.
            end: ends all ranks of a run.
            unused: called when the ranks of a job were not taken over in time.
        """
        self._launch, self._end, self._unused = launch, end, unused
        self._kept: dict[str, _Kept] = {}
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._ending: set[asyncio.Task[None]] = set()
        self._begun: dict[str, int] = {}
        """The newest epoch of each job that was started here."""
        self._turn = 0

    def __contains__(self, job: object) -> bool:
        """Return whether ranks of ``job`` were started ahead."""
        return job in self._kept

    async def keep(self, command: Ahead) -> Waiting:
        """Start the ranks, or keep those of the same start for longer; return whether they wait already.

        Raises:
            StaleError: their epoch was started meanwhile: others would take the sockets and control pages of its ranks.
        """
        start = command.start
        async with self._locks[start.job]:
            if start.epoch <= self._begun.get(start.job, 0):
                raise StaleError(f"job {start.job!r}: epoch {start.epoch} was started here already")
            known = self._kept.get(start.job)
            if known is not None and not _same(known.run, start):
                await self._drop(start.job)
                known = None
            if known is None:
                run = await self._launch(start, _say_ended)
            else:
                run = known.run
                known.ends.cancel()
            loop = asyncio.get_running_loop()
            self._turn += 1
            ends = loop.call_later(command.keep_s, self._over, start.job, self._turn)
            self._kept[start.job] = _Kept(run, ends, self._turn)
        return _state(run)

    async def take(self, start: Start) -> Run | None:
        """Return the waiting ranks of a start, which are the caller's from now on; end others of its job.

        None: there are none of it.

        Raises:
            AheadError: the start is only for such ranks, and not all of them wait.
        """
        async with self._locks[start.job]:
            self._begun[start.job] = max(start.epoch, self._begun.get(start.job, 0))
            known = self._kept.get(start.job)
            state = _state(known.run) if known is not None and _same(known.run, start) else Waiting()
            if known is not None and state.ready and start.ahead and start.restore.tier is not None:
                known.ends.cancel()
                del self._kept[start.job]
                return known.run
            await self._drop(start.job)
        if start.ahead:
            why = state.why_not or "they are not here, or do not wait yet"
            raise AheadError(
                f"job {start.job!r} epoch {start.epoch}: its ranks were not started ahead: {why}"
            )
        return None

    async def fence(self, job: str, epoch: int) -> None:
        """End ranks of ``job`` that were started ahead for an epoch up to ``epoch``."""
        async with self._locks[job]:
            if (known := self._kept.get(job)) is not None and known.run.start.epoch <= epoch:
                await self._drop(job)

    async def stop_all(self) -> None:
        """End all of them."""
        for job in list(self._kept):
            async with self._locks[job]:
                await self._drop(job)

    async def _drop(self, job: str) -> None:
        if (known := self._kept.pop(job, None)) is not None:
            known.ends.cancel()
            await self._end(known.run)

    def _over(self, job: str, turn: int) -> None:
        task = asyncio.get_running_loop().create_task(self._give_up(job, turn))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def _give_up(self, job: str, turn: int) -> None:
        try:
            async with self._locks[job]:
                known = self._kept.get(job)
                if known is None or known.turn != turn:
                    return  # kept for longer, or taken over, as the time ran out
                await self._drop(job)
            await self._unused(job)
        except HoldfastError as error:
            _log.error("ranks of job %s that were started ahead: %s", job, error)


def _same(run: Run, start: Start) -> bool:
    """Return whether ``run`` is what ``start`` asks for, apart from the state that it names."""
    return _bare(run.start) == _bare(start)


def _bare(start: Start) -> Start:
    return start.model_copy(update={"restore": RestoreOrder(), "ahead": False})


def _state(run: Run) -> Waiting:
    ended = [process for process in run.processes.values() if process.gone.done()]
    if ended:
        rank = ended[0].rank
        last = run.log_tail(rank).strip().rpartition("\n")[2]
        return Waiting(why_not=f"rank {rank} ended with status {ended[0].exit_code}: {last}"[:300])
    rows = run.board.rows.values() if run.board else ()
    return Waiting(ready=bool(run.processes) and all(row.waits for row in rows))


def _say_ended(run: Run, process: Watched) -> None:
    _log.warning(
        "job %s: rank %d, started ahead for epoch %d, ended with status %s",
        run.start.job,
        process.rank,
        run.start.epoch,
        process.exit_code,
    )

"""Rank processes that outlive their epoch (``holdfast.run``), on the agent's side.

When an epoch is fenced, its ranks that may be kept are ordered to leave their training function. One that left in
time steps no more, and waits for the order to begin the next epoch. The others are ended. Nothing of an old epoch goes
on.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import signal
import socket
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import psutil

from holdfast.agent import wire
from holdfast.agent.ranks import exits
from holdfast.agent.ranks.blocked import ObservedThread
from holdfast.agent.ranks.handed import hand
from holdfast.agent.ranks.processes import Watched
from holdfast.agent.ranks.rank_main import RankOrder
from holdfast.agent.ranks.rank_table import RankStatus
from holdfast.errors import HoldfastError
from holdfast.models.agent import Frame, Start
from holdfast.policies.restore import kept_processes

if TYPE_CHECKING:
    from holdfast.agent.ranks.run import Run

_log = logging.getLogger(__name__)

MOST_FILES = 0.5
"""Share of the files that a process may have open, beyond which it is not kept. Each epoch leaves some: connections and
threads of process groups that cannot be released safely (:mod:`holdfast.session.kept_groups`)."""
_LOOK_S = 0.002
_STACK_S = 1.0
"""For the stack of a process that is ended next."""


async def leave(
    processes: Mapping[int, Watched],
    rows: Mapping[int, RankStatus],
    control: Callable[[int], str],
    within_s: float,
) -> dict[int, Watched]:
    """Order ranks to leave their epoch; return those that have left their training function in time.

    One that has not hangs in a call that cannot be broken off. Where that is seen sooner it is not waited for.
    """
    asked = {
        rank: process
        for rank, process in processes.items()
        if rows[rank].keeps and not process.gone.done() and _ask_to_leave(control(rank))
    }
    threads = {rank: ObservedThread(process.pid) for rank, process in asked.items()}

    def waits(rank: int) -> bool:
        row = rows[rank]
        if row.left or asked[rank].gone.done():
            return False
        return row.leaving or not threads[rank].is_blocked(time.monotonic())

    def over() -> bool:
        waiting = [rank for rank in asked if waits(rank)]  # each is looked at
        return not waiting

    await _until(over, within_s)
    return {rank: asked[rank] for rank in asked if rows[rank].left and not asked[rank].gone.done()}


async def why_not_left(processes: Mapping[int, Watched]) -> dict[int, str]:
    """Return why processes are not among those of :func:`leave`: they ended, or what their main thread is in."""
    from holdfast.agent.diagnostics import stacks  # noqa: PLC0415  (seldom needed)

    alive = {rank: process.pid for rank, process in processes.items() if not process.gone.done()}
    dumps = await stacks.dump("here", alive, timeout_s=_STACK_S)
    found = {
        rank: f"it {_how_it_ended(process)} instead of leaving its training function"
        for rank, process in processes.items()
    }
    for rank in alive:
        found[rank] = "it did not leave its training function in time"
        threads = {each.thread: each.frames for each in dumps if each.rank == rank and not each.child}
        if main := threads.pop("MainThread", ()):
            called = ", called by ".join(map(_at, main))
            beside = "; ".join(f"{name}: {_at(frames[0])}" for name, frames in threads.items() if frames)
            _log.warning("rank %d does not leave its training function: %s; %s", rank, called, beside)
            found[rank] += f", but in {_at(main[0])}"
    return found


def was_killed(process: Watched) -> bool:
    """Return whether SIGKILL, not sent by this agent, ended a process that was ordered to leave its epoch.

    Other signals may come of the order: its connections are shut down below it.
    """
    ended = process.gone.done() and process.exit_code == -signal.SIGKILL
    return ended and process.expected and not process.ordered


def why_lost(process: Watched) -> str:
    """Return why a new process takes the place of one that was kept and ended by itself before the order to go on."""
    return f"it {_how_it_ended(process)} while it waited for the next epoch"


def _how_it_ended(process: Watched) -> str:
    """Return what to say of a process that this agent has sent no signal: several may be killed within a moment."""
    by = exits.signal_name(process.exit_code)
    return f"was killed by {by}" if by else f"ended with status {process.exit_code}"


def _at(frame: Frame) -> str:
    return f"{frame.function} ({frame.file}:{frame.line})"


def worn_out(pid: int) -> str:
    """Return why a process is too old to be kept for another epoch; empty: it is not."""
    try:
        process = psutil.Process(pid)
        has, (most, _) = process.num_fds(), process.rlimit(psutil.RLIMIT_NOFILE)
    except (psutil.Error, OSError):
        return ""
    if has <= MOST_FILES * most:
        return ""
    return f"it has {has} of at most {most} files open; each epoch leaves some"


def order(control: str, rank_order: RankOrder) -> None:
    """Have the kept rank that had this control page begin the epoch of an order."""
    hand(wire.next_order(control), asdict(rank_order))


async def late(
    processes: Mapping[int, Watched], rows: Mapping[int, RankStatus], within_s: float
) -> list[int]:
    """Wait until kept ranks are in their new epoch; return those that are not in time."""
    # Any word of the new epoch is proof: "joined" is sent once, and a datagram may be lost.
    await _until(
        lambda: all(rows[rank].spoke or each.gone.done() for rank, each in processes.items()), within_s
    )
    return [rank for rank, each in processes.items() if each.gone.done() or not rows[rank].spoke]


def why_replaced(process: Watched, within_s: float) -> str:
    """Return why a new process takes the place of one of :func:`late`."""
    if process.gone.done():
        return f"it {_how_it_ended(process)} at the beginning of the next epoch"
    return f"it had not begun the next epoch after {within_s:g} s"


def remove_files(controls: Collection[str]) -> None:
    """Remove what is left of the orders to ranks with these control pages."""
    for control in controls:
        for path in (wire.end_socket(control), wire.next_order(control)):
            path.unlink(missing_ok=True)


def _ask_to_leave(control: str) -> bool:
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sender:
        sender.sendto(wire.END, os.fspath(wire.end_socket(control)))
        return True
    return False


async def _until(done: Callable[[], bool], within_s: float) -> None:
    deadline = time.monotonic() + within_s
    while not done() and time.monotonic() < deadline:  # noqa: ASYNC110  (of several ranks, and of their processes)
        await asyncio.sleep(_LOOK_S)


@dataclass
class _Waiting:
    run: Run
    ends: asyncio.TimerHandle


class Survivors:
    """Processes that wait for their next epoch, by job. Used on the event loop, under the job's lock."""

    def __init__(
        self,
        end: Callable[[Run], Awaitable[object]],
        lock: Callable[[str], asyncio.Lock],
        lost: Callable[[Run, Watched], None],
    ) -> None:
        """``end`` ends all processes of a run; ``lock`` returns a job's; ``lost`` takes those that end here."""
        self._end, self._lock, self._lost = end, lock, lost
        self._waiting: dict[str, _Waiting] = {}
        self._ending: set[asyncio.Task[None]] = set()

    def __contains__(self, job: object) -> bool:
        """Return whether processes of ``job`` wait here."""
        return job in self._waiting

    def waiting(self, job: str) -> int:
        """Return how many processes of ``job`` wait here."""
        found = self._waiting.get(job)
        return sum(not each.gone.done() for each in found.run.outlived.values()) if found is not None else 0

    def keep(self, job: str, run: Run, wait_s: float) -> None:
        """Keep the processes that outlived ``run``, for so long."""
        ends = asyncio.get_running_loop().call_later(wait_s, self._over, job, run)
        self._waiting[job] = _Waiting(run, ends)
        for process in run.outlived.values():
            if process.gone.done():  # while what the ranks left behind was ended
                self._lost(run, process)
            else:
                process.watch(functools.partial(self._lost, run))

    async def take(self, start: Start) -> tuple[Run | None, dict[int, str]]:
        """Return the run whose processes go on in that of ``start``, or the ranks whose processes may not, and why.

        These are ended.
        """
        if (found := self._waiting.get(start.job)) is None:
            return None, {}
        if not (why := kept_processes.why_ended(found.run.start, start)):
            found.ends.cancel()
            del self._waiting[start.job]
            return found.run, {}
        _log.info("job %s epoch %d: no process is kept: %s", start.job, start.epoch, why)
        ended = dict.fromkeys(found.run.outlived, why)
        await self.end(start.job, start.epoch)
        return None, ended

    async def end(self, job: str, epoch: int) -> None:
        """End what waits of ``job`` and is of an epoch up to ``epoch``."""
        found = self._waiting.get(job)
        if found is not None and found.run.start.epoch <= epoch:
            await self._end(found.run)  # may fail: then they are still here, and the next call tries again
            found.ends.cancel()
            del self._waiting[job]

    async def stop_all(self) -> None:
        """End all of them."""
        for job, found in list(self._waiting.items()):
            await self.end(job, found.run.start.epoch)

    def _over(self, job: str, run: Run) -> None:
        task = asyncio.get_running_loop().create_task(self._give_up(job, run))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def _give_up(self, job: str, run: Run) -> None:
        async with self._lock(job):
            if (found := self._waiting.get(job)) is None or found.run is not run:
                return
            _log.info("job %s: no epoch began in time: the processes that waited for it are ended", job)
            try:
                await self.end(job, run.start.epoch)
            except HoldfastError as error:
                _log.error("job %s: processes that were kept: %s", job, error)

"""Processes that the ranks of an epoch started and left behind: found, ended, and checked to be gone.

Every process that comes from a rank is below the fork server in the tree of processes
(:mod:`holdfast.agent.ranks.adopting`). Its *mark* identifies the rank: the path of the rank's control page, in the
environment that a program was executed with, and in the name of a mapping that a plain fork inherits. A process that
has neither gave up its environment; it is of the only job that runs here, and is left alone where there are several, or
replicas of roles.
Where an epoch has a control group of its own (:mod:`holdfast.agent.ranks.epoch_groups`), all its members are the
epoch's.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from holdfast.agent import wire
from holdfast.agent.ranks import marks, proc, trackers
from holdfast.agent.ranks.epoch_groups import EpochGroups
from holdfast.agent.ranks.forkserver import ForkServer
from holdfast.agent.ranks.proc import KnownProcess
from holdfast.errors import DyingError, UndyingError
from holdfast.paths import ENV_AGENT, of_agent

_log = logging.getLogger(__name__)

GONE_S = 3.0
"""After SIGKILL; a process that takes longer is stuck in the kernel."""
TIDY_S = 1.0
"""Helpers that remove shared memory when the processes that they serve have ended get this long for it."""
_AGAIN_S = 0.002
_EXEC_LOOKS = 20


class Remains:
    """The remains of the epochs on this machine. Used on the event loop."""

    def __init__(
        self,
        controls: Path,
        folder: Path,
        incarnation: str,
        forks: ForkServer,
        groups: EpochGroups,
        *,
        gone_s: float = GONE_S,
    ) -> None:
        """``controls`` has the control pages of the machine whose folder is ``folder``."""
        self._groups = groups
        self._in_environment = os.fsencode(f"\0{wire.ENV_CONTROL}={controls}/")
        self._in_maps = f"/memfd:{marks.NAME}".encode()
        self._any_agent = os.fsencode(f"\0{ENV_AGENT}={folder}:")
        self._this_agent = self._any_agent + f"{incarnation}\0".encode()
        self._forks = forks
        self._gone_s = gone_s
        self._clear = False
        # A pool of its own: a start must not queue behind transfers in the event loop's default executor.
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="remains")
        os.environ[ENV_AGENT] = of_agent(folder, incarnation)

    def open(self, run: str) -> str:
        """Make a group for ``run``, if there may be one; return the file by which its ranks join it, or nothing."""
        return self._groups.open(run)

    async def end(self, run: str, *, alone: Callable[[], bool], spared: Sequence[int] = ()) -> list[int]:
        """End what is left of the run named ``run``, none of whose ranks lives; return the pids.

        Args:
            run: its name, with which its control pages begin.
            alone: whether no other job has ranks here, or is being given some, and no role a replica: a process without
                a mark is of this one. Asked at each look, by another thread.
            spared: ranks that live on; all that is below them stays.

        Raises:
            UndyingError: something cannot be ended.
        """
        ended = await self._in_thread(lambda: self._left(run, alone=alone, spared=spared))
        self._groups.close(run)
        return ended

    async def end_all(self) -> list[int]:
        """Do the same as :meth:`end` for every run: the agent ends."""
        ended = await self._in_thread(lambda: self._left("", alone=lambda: True))
        self._groups.close()
        return ended

    async def clear(self) -> None:
        """End what earlier agents of this machine left, unless that was done.

        Raises:
            UndyingError: something cannot be ended; the next call tries again.
        """
        if not self._clear:
            if ended := await self._in_thread(self._of_former_agents):
                _log.warning("ended %d processes that a former agent of this machine left", len(ended))
            self._groups.close()
            self._groups.close_abandoned()
            self._clear = True

    async def _in_thread(self, find: Callable[[], Sequence[KnownProcess]]) -> list[int]:
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._end, find)

    def _end(self, find: Callable[[], Sequence[KnownProcess]]) -> list[int]:
        """SIGKILL what ``find`` finds until two looks in a row find nothing: others are being forked meanwhile.

        The kernel's list of children may leave one out when another ends just then; not twice.
        """
        ended: set[int] = set()
        began, deadline = time.monotonic(), math.inf
        tidy = min(TIDY_S, self._gone_s)
        empty = 0
        while empty < 2:
            left = find()
            empty = 0 if left else empty + 1
            if left and time.monotonic() > deadline:
                raise _cannot(left, self._gone_s)
            for process in left:
                if time.monotonic() > began + tidy or not trackers.tidies(proc.command(process.pid)):
                    process.send(signal.SIGKILL)
                    ended.add(process.pid)
            if left:
                # Counts from the first SIGKILL: on a busy host the look before it may take as long.
                deadline = min(deadline, time.monotonic() + self._gone_s)
                time.sleep(_AGAIN_S)
        return sorted(ended)

    def _left(self, run: str, *, alone: Callable[[], bool], spared: Sequence[int] = ()) -> list[KnownProcess]:
        """Return the processes of ``run`` (empty: of any), except those of whole ranks and the agent's own helpers."""
        members = {*self._groups.members(run)}
        if members and spared:
            members -= {*spared, *(known.pid for known in proc.descendants(spared))}
        found = [known for pid in {*self._candidates(), *members} if (known := proc.look(pid))]
        # Asked between the listing and the comparison with known ranks: one that is forked just now for another job has
        # no mark yet, and either its start is under way or it is known as a rank.
        unmarked = alone()
        tops = [
            known
            for known in found
            if not (known.holds_nothing or self._forks.forked(known))
            and (known.pid in members or self._is_of(known.pid, run, unmarked))
        ]
        below = proc.descendants(top.pid for top in tops)
        return tops + [known for known in below if not known.holds_nothing]

    def _candidates(self) -> Iterable[int]:
        """Return children of the fork server; after its death, which has init adopt them, all that can be ours."""
        if self._forks.replaced:
            return (pid for pid in proc.everyone() if self._in_environment in proc.environment(pid))
        return proc.children(self._forks.pid) if self._forks.pid else ()

    def _is_of(self, pid: int, run: str, alone: bool) -> bool:
        environment, rank = _environment(pid), f"{run}-r" if run else ""
        if self._in_environment in environment:
            return self._in_environment + rank.encode() in environment
        if self._in_maps in (mapped := proc.maps(pid)):
            return self._in_maps + rank.encode() in mapped
        return alone

    def _of_former_agents(self) -> list[KnownProcess]:
        """Return every process that an agent of this machine other than this one started.

        Without torch's helpers: they end by themselves, and only they know whose tensors in shared memory to remove.
        """
        ours = {os.getpid(), *_ancestors()}
        members = {*self._groups.members()}
        found = []
        for pid in proc.everyone():
            environment = proc.environment(pid)
            theirs = self._any_agent in environment and self._this_agent not in environment
            if (theirs or pid in members) and pid not in ours:
                known = proc.look(pid)
                if known is None or known.holds_nothing or trackers.tidies_late(proc.command(pid)):
                    continue
                found.append(known)
        return found


def _environment(pid: int) -> bytes:
    """Return the same as :func:`proc.environment`; for a process that is being executed, once it has one."""
    for _ in range(_EXEC_LOOKS):
        if (environment := proc.environment(pid)) != b"\0" or proc.has_environment(pid):
            break
        time.sleep(_AGAIN_S)
    return environment


def _ancestors() -> Iterator[int]:
    known = proc.look(os.getpid())
    while known is not None and known.parent:
        yield known.parent
        known = proc.look(known.parent)


def _cannot(left: Sequence[KnownProcess], within_s: float) -> UndyingError:
    names = ", ".join(map(str, left))
    summary = f"processes that an earlier epoch left are still there {within_s:g} s after SIGKILL: {names}"
    if any(proc.is_stuck(process.pid) for process in left):
        return UndyingError(f"{summary}. In state D they are stuck in the kernel: evict the machine.")
    return DyingError(
        f"{summary}. The machine has no free processor for them, or they are another user's; nothing is started "
        "beside them. If they stay, end them or evict the machine."
    )

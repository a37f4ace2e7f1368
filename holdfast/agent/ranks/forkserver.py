"""The machine's fork server: a process with the training libraries loaded, from which all others are forked.

Starting Python and importing torch takes over a second, forking a process that has done so a few
milliseconds. The server is ``multiprocessing``'s own; it ends when the agent does, and what it forked
ends with it (:func:`holdfast.agent.ranks.rank_main.bootstrap`).

A fork still copies page tables, and its first steps copy the pages that they touch: with many at once, as in a
recovery, that is most of their time. So while the machine is idle a few **spare** processes are forked and settled,
and wait for an order of what to run.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import math
import multiprocessing
import multiprocessing.forkserver
import multiprocessing.process
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from typing import Any

from holdfast.agent.ranks import proc, rank_main

ForkFn = Callable[[Callable[..., None], tuple[Any, ...]], ForkServerProcess]

_UNKNOWN_PYTHON = (3, 14)
"""From here on ``multiprocessing`` authenticates its clients to its fork server."""
_PAUSE_S = 0.1
_FULL_PAUSE_S = 1.0
# After the last use: a recovery goes on for a while, and its first steps should have the cores.
_CALM_S = 3.0
_REMEMBERED = 512
"""Processes that ended are forgotten when there are so many."""
ADOPTING = "holdfast.agent.ranks.adopting"
ENV_GIVEN = "HOLDFAST_FORK_SERVER"
ADDRESS = "forks.sock"
"""Socket of a fork server that the agent was started with, in the machine's folder, where the agent runs."""
# Needed by every rank, and by the carrier, so that neither imports anything after its fork.
_OWN_PRELOAD = (
    "holdfast.agent.ranks.rank_main",
    "holdfast.agent.checkpoints.transfer_main",
    "holdfast.agent.diagnostics.check_process",
)

_SESSION_PRELOAD = (
    "holdfast.session",
    "holdfast.agent.ranks.lost_peer",
    rank_main.REHEARSAL,
    "holdfast.storage.objects.ready",
    "holdfast.agent.checkpoints.prove_main",
)


@dataclass(frozen=True)
class Spare:
    """A process that waits for an order of what to run."""

    process: ForkServerProcess
    orders: Connection[Any, Any]
    settled: Connection[Any, Any]
    """Readable once it has done what can be done in advance."""

    @property
    def waits(self) -> bool:
        """Whether it has settled; False for one that another thread takes just now."""
        try:
            return self.settled.poll()
        except OSError:
            return False


@dataclass(frozen=True)
class GivenForkServer:
    """The fork server that an agent was started with (:mod:`holdfast.agent.starter`): a child of the agent's own."""

    pid: int
    alive: int
    """File descriptor: the server ends when its last copy is closed."""
    loaded: tuple[str, ...]
    incarnation: str
    """The agent's: what forks of the server start is found by it, as all that an agent starts."""

    def dumped(self) -> str:
        """Return the value of :data:`ENV_GIVEN`."""
        return json.dumps(dataclasses.astuple(self))

    @classmethod
    def taken(cls) -> GivenForkServer | None:
        """Return the server that this agent was started with, once; None: it was started alone."""
        if not (dumped := os.environ.pop(ENV_GIVEN, "")):
            return None
        pid, alive, loaded, incarnation = json.loads(dumped)
        os.set_inheritable(alive, False)
        return cls(pid, alive, tuple(loaded), incarnation)

    def used(self, wanted: Sequence[str]) -> bool:
        """Let ``multiprocessing`` fork from it; False, and its end, where it is of no use."""
        if self.loaded != tuple(wanted) or sys.version_info >= _UNKNOWN_PYTHON:
            os.close(self.alive)
            return False
        server: Any = multiprocessing.forkserver._forkserver
        server._forkserver_address, server._forkserver_alive_fd = ADDRESS, self.alive
        server._forkserver_pid = self.pid
        return True


def modules(preload: Sequence[str]) -> list[str]:
    """Return the names of all modules that a fork server loads, where jobs want ``preload``."""
    # The Session needs torch; a machine whose jobs do not preload that is not made to.
    return [*preload, *_OWN_PRELOAD, *(_SESSION_PRELOAD if "torch" in preload else ())]


class ForkServer:
    """Forks processes; safe to use from several threads."""

    def __init__(self, preload: Sequence[str], given: GivenForkServer | None = None) -> None:
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload([ADOPTING, *modules(preload)])
        self._given = given is not None and given.used(modules(preload))
        self._lock = threading.Lock()
        # Of its own: forks must not queue behind transfers in the event loop's default executor.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="fork")
        self._spares: list[Spare] = []
        self._used = time.monotonic()
        self._forked: dict[int, int] = {}
        self._server = 0
        self.replaced = False
        """Whether a server died, and another forks since."""
        self.warm = False

    @property
    def pid(self) -> int:
        """Pid of the server; 0: it was not started."""
        return int(getattr(multiprocessing.forkserver._forkserver, "_forkserver_pid", 0) or 0)

    def forked(self, process: proc.KnownProcess) -> bool:
        """Return whether the server forked the process for us; else it adopted it."""
        return self._forked.get(process.pid) == process.started

    def fork(self, target: Callable[..., None], args: tuple[Any, ...] = ()) -> ForkServerProcess:
        """Run ``target(*args)`` in a new process; return when it has a pid.

        Takes milliseconds once warm, and as long as loading the libraries before: not for the event loop.
        """
        # A server that we did not start has not our environment.
        environment = dict(os.environ) if self._given else None
        process = self._context.Process(target=rank_main.bootstrap, args=(target, args, environment))
        with self._lock:
            process.start()
            # Otherwise the next start() would poll this one's status pipe from its thread, racing with
            # the owner's watch of the process, and interpreter exit would wait for it.
            multiprocessing.process._children.discard(process)  # type: ignore[attr-defined]
        if (known := proc.look(int(process.pid or 0))) is not None:
            self._remember(known)
            self.replaced |= self._server not in (0, self.pid)
            self._server = self.pid
        return process

    def _remember(self, process: proc.KnownProcess) -> None:
        if len(self._forked) >= _REMEMBERED:
            alive = (known for pid in self._forked if (known := proc.look(pid)) and self.forked(known))
            self._forked = {known.pid: known.started for known in alive}
        self._forked[process.pid] = process.started

    def run(self, target: Callable[..., None], args: tuple[Any, ...] = ()) -> ForkServerProcess:
        """Do as :meth:`fork` does, in a spare process if there is one. ``args`` must pickle without their process."""
        return self._take(target, args) or self.fork(target, args)

    async def run_soon(self, target: Callable[..., None], args: tuple[Any, ...] = ()) -> ForkServerProcess:
        """Do the same as :meth:`run` from the event loop."""
        return self._take(target, args) or await self.fork_soon(target, args)

    @property
    def waiting(self) -> int:
        """Number of spare processes that have settled."""
        return sum(spare.waits for spare in list(self._spares))

    async def keep_spares(self, want: Callable[[], int]) -> None:
        """Keep ``want()`` spare processes without end, forked one by one while nothing else is forked."""
        while True:
            short = len(self._spares) < want()
            await asyncio.sleep(_PAUSE_S if short else _FULL_PAUSE_S)
            if short and time.monotonic() - self._used > _CALM_S:
                await asyncio.get_running_loop().run_in_executor(self._thread, self._fork_spare)

    def _take(self, target: Callable[..., None], args: tuple[Any, ...]) -> ForkServerProcess | None:
        self._used = time.monotonic()
        while True:
            # One that still rehearses would answer later than a new process.
            spare = next((each for each in reversed(list(self._spares)) if each.waits), None)
            if spare is None:
                return None
            try:
                self._spares.remove(spare)
            except ValueError:
                continue  # another thread took it
            # It may have been killed meanwhile.
            with contextlib.suppress(OSError), spare.settled, spare.orders:
                spare.orders.send((target, args))
                return spare.process

    def _fork_spare(self) -> None:
        theirs, ours = multiprocessing.Pipe(duplex=False)
        settled, settles = multiprocessing.Pipe(duplex=False)
        with theirs, settles:
            self._spares.append(Spare(self.fork(rank_main.wait, (theirs, settles)), ours, settled))

    async def fork_soon(self, target: Callable[..., None], args: tuple[Any, ...] = ()) -> ForkServerProcess:
        """Do the same as :meth:`fork` from the event loop."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, self.fork, target, args)

    async def warm_up(self) -> None:
        """Start the server and wait for one fork to succeed: from then on forks are fast."""
        process = await self.fork_soon(rank_main.nothing)
        await asyncio.to_thread(process.join)
        self.warm = True
        self._used = -math.inf  # spares may come at once

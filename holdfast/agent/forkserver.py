"""The machine's fork server: a process with the training libraries loaded, from which all others are forked.

Starting Python and importing torch takes over a second, forking a process that has done so a few
milliseconds. The server is ``multiprocessing``'s own; it ends when the agent does, and what it forked
ends with it (:func:`holdfast.agent.rank_main.bootstrap`).
"""

from __future__ import annotations

import asyncio
import multiprocessing
import multiprocessing.process
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.context import ForkServerProcess
from typing import Any

from holdfast.agent import rank_main

ForkFn = Callable[[Callable[..., None], tuple[Any, ...]], ForkServerProcess]

# Needed by every rank, and by the carrier, so that neither imports anything after its fork.
_OWN_PRELOAD = ("holdfast.agent.rank_main", "holdfast.agent.carrier_main", "holdfast.agent.collectives")


class ForkServer:
    """Forks processes; safe to use from several threads."""

    def __init__(self, preload: Sequence[str]) -> None:
        self._context = multiprocessing.get_context("forkserver")
        # The Session needs torch; a machine whose jobs do not preload that is not made to.
        session = ["holdfast.session"] if "torch" in preload else []
        self._context.set_forkserver_preload([*preload, *_OWN_PRELOAD, *session])
        self._lock = threading.Lock()
        # Of its own: forks must not queue behind transfers in the event loop's default executor.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="fork")
        self.warm = False

    def fork(self, target: Callable[..., None], args: tuple[Any, ...] = ()) -> ForkServerProcess:
        """Run ``target(*args)`` in a new process; returns when it has a pid.

        Takes milliseconds once warm, and as long as loading the libraries before: not for the event loop.
        """
        process = self._context.Process(target=rank_main.bootstrap, args=(target, args))
        with self._lock:
            process.start()
            # Otherwise the next start() would poll this one's status pipe from its thread, racing with
            # whoever watches the process, and interpreter exit would wait for it.
            multiprocessing.process._children.discard(process)  # type: ignore[attr-defined]
        return process

    async def fork_soon(self, target: Callable[..., None], args: tuple[Any, ...] = ()) -> ForkServerProcess:
        """As :meth:`fork`, from the event loop."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, self.fork, target, args)

    async def warm_up(self) -> None:
        """Start the server and see one fork come back: from then on forks are fast."""
        process = await self.fork_soon(rank_main.nothing)
        await asyncio.to_thread(process.join)
        self.warm = True

"""Warm processes: a few that wait, each for one flow run; used ones are replaced a little later."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import signal
from collections.abc import Sequence
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess

from prefect.logging import get_logger

from holdfast.deployments.worker import preload, run_process
from holdfast.deployments.worker.run_process import READY, Order

REFILL_DELAY_S = 2.0
"""A replacement warms up this long after a run began, so that it takes no CPU from the recovery."""

_logger = get_logger("holdfast.worker")


class WarmProcess:
    """One forked process and its pipe. ``ready`` is set once it waits for an order, or died."""

    def __init__(self) -> None:
        self.ready = asyncio.Event()
        self.ended = asyncio.Event()
        self._process: ForkServerProcess
        self._pipe: Connection

    async def start(self, context: multiprocessing.context.ForkServerContext) -> None:
        """Fork the process. Returns before it is warm."""
        await asyncio.to_thread(self._fork, context)
        loop = asyncio.get_running_loop()
        loop.add_reader(self._pipe.fileno(), self._on_word)
        loop.add_reader(self._process.sentinel, self._on_end)

    def give(self, order: Order) -> int:
        """Hand over one flow run; return the process id. Raises OSError when the process is dead."""
        self._pipe.send(order)
        return self.pid

    def say(self, word: str) -> None:
        """Send a word to a running process; harmless when it is dead."""
        try:
            self._pipe.send(word)
        except OSError:
            _logger.debug("process %s ended before it heard %r", self.pid, word)

    def signal(self, number: signal.Signals) -> None:
        """Send the process a signal, unless it ended."""
        if not self.ended.is_set():
            os.kill(self.pid, number)

    async def kill_after(self, seconds: float) -> None:
        """Kill the process (SIGKILL), unless it ends within ``seconds``."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.ended.wait()
        self.signal(signal.SIGKILL)

    async def wait(self) -> int:
        """Wait for its end; returns the exit status, negative for a signal."""
        await self.ended.wait()
        status = self._process.exitcode
        return 255 if status is None else status

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid or 0

    def _fork(self, context: multiprocessing.context.ForkServerContext) -> None:
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=run_process.main, args=(theirs,), daemon=True)
        self._process.start()
        theirs.close()

    def _on_word(self) -> None:
        asyncio.get_running_loop().remove_reader(self._pipe.fileno())
        try:
            if self._pipe.recv() == READY:
                self.ready.set()
        except (EOFError, OSError):
            _logger.debug("process %s closed its pipe", self.pid)

    def _on_end(self) -> None:
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._process.sentinel)
        loop.remove_reader(self._pipe.fileno())
        self._process.join()
        self._pipe.close()
        self.ready.set()
        self.ended.set()


class WarmPool:
    """Keeps ``size`` warm processes. ``take`` never waits longer than one warm-up."""

    def __init__(self, size: int, modules: Sequence[str]) -> None:
        self._size = size
        self._context = multiprocessing.get_context("forkserver")
        # The fork server inherits this environment when the first process is requested.
        os.environ[preload.MODULES_VARIABLE] = ",".join(modules)
        self._context.set_forkserver_preload([preload.__name__, run_process.__name__])
        self._waiting: list[WarmProcess] = []
        self._lock = asyncio.Lock()
        self._refills: set[asyncio.Task[None]] = set()
        self._closed = False

    @property
    def warm(self) -> int:
        """Number of processes that wait for an order."""
        return sum(process.ready.is_set() and not process.ended.is_set() for process in self._waiting)

    async def fill(self) -> None:
        """Start as many as are missing, but those whose replacement is due later."""
        async with self._lock:
            self._waiting = [process for process in self._waiting if not process.ended.is_set()]
            while len(self._waiting) + len(self._refills) < self._size and not self._closed:
                self._waiting.append(await self._start())

    async def take(self) -> WarmProcess:
        """Return a warm process, or the first to become so; the caller owns it."""
        while True:
            alive = [process for process in self._waiting if not process.ended.is_set()]
            alive.sort(key=lambda process: not process.ready.is_set())
            chosen = alive[0] if alive else await self._start()
            if chosen in self._waiting:
                self._waiting.remove(chosen)
            await chosen.ready.wait()
            if not chosen.ended.is_set():
                return chosen
            _logger.warning("process %s died while it warmed up", chosen.pid)
            await asyncio.sleep(0.2)

    def refill_later(self, done: asyncio.Event) -> None:
        """Replace a taken process once ``done`` is set, or :data:`REFILL_DELAY_S` have passed."""
        task = asyncio.create_task(self._refill(done))
        self._refills.add(task)
        task.add_done_callback(self._refills.discard)

    async def close(self) -> None:
        """End all that wait."""
        self._closed = True
        for task in tuple(self._refills):
            task.cancel()
        async with self._lock:
            for process in self._waiting:
                process.signal(signal.SIGKILL)
                await process.wait()
            self._waiting.clear()

    async def _refill(self, done: asyncio.Event) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(REFILL_DELAY_S):
                await done.wait()
        if task := asyncio.current_task():
            self._refills.discard(task)
        await self.fill()

    async def _start(self) -> WarmProcess:
        process = WarmProcess()
        await process.start(self._context)
        return process

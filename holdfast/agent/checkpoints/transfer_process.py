"""The agent's side of the carrier process, which talks to the object store so that nothing else has to wait."""

from __future__ import annotations

import asyncio
import itertools
import logging
import multiprocessing
from typing import Any

from holdfast import errors
from holdfast.agent.checkpoints.transfer_line import TransferLine
from holdfast.agent.ranks.forkserver import ForkServer
from holdfast.agent.ranks.processes import Watched
from holdfast.agent.ranks.rank_main import run_named
from holdfast.settings import Settings

_log = logging.getLogger(__name__)


class TransferProcess:
    """Starts its process when first needed, and again when it died. Used on the event loop."""

    def __init__(self, forks: ForkServer, settings: Settings) -> None:
        self._forks = forks
        self._settings = settings
        self._numbers = itertools.count()
        self._open: dict[int, asyncio.Future[Any]] = {}
        self._line: TransferLine | None = None
        self._process: Watched | None = None
        self._starting = asyncio.Lock()

    async def start(self) -> None:
        """Start the process if it does not run, so that the first call need not wait for it."""
        async with self._starting:
            if self._line is not None:
                return
            ours, theirs = multiprocessing.Pipe()
            process = await self._forks.fork_soon(
                run_named, ("holdfast.agent.checkpoints.transfer_main", "serve", theirs, self._settings)
            )
            theirs.close()
            self._process = Watched(process, -1)
            line = self._line = TransferLine(ours, self._settle, lambda: self._ended(line))

    async def call(self, operation: str, timeout_s: float, **arguments: Any) -> Any:
        """Run one of :mod:`holdfast.agent.checkpoints.transfer_main`'s operations.

        Raises:
            UnavailableError: the store or the process did not answer within ``timeout_s`` seconds.
            HoldfastError: the error that the operation raised.
        """
        await self.start()
        assert self._line is not None
        number = next(self._numbers)
        future = self._open[number] = asyncio.get_running_loop().create_future()
        try:
            # What no one waits for any more when a process takes messages again is not done late.
            self._line.send((number, operation, arguments), lambda: number in self._open)
            return await asyncio.wait_for(future, timeout_s)
        except TimeoutError:
            raise errors.UnavailableError(f"{operation}: not done within {timeout_s:.0f} s") from None
        finally:
            self._open.pop(number, None)

    def close(self) -> None:
        """End the process; open calls fail."""
        if self._process is not None:
            self._process.kill()
        self._lost()

    def _ended(self, line: TransferLine) -> None:
        if line is self._line:
            _log.warning("transfer process ended; the next call starts another")
            self._lost()

    def _settle(self, answer: tuple[int, bool, Any]) -> None:
        number, ok, result = answer
        future = self._open.get(number)
        if future is None or future.done():
            return
        if ok:
            future.set_result(result)
        else:
            kind, message = result
            future.set_exception(getattr(errors, kind, errors.UnavailableError)(message))

    def _lost(self) -> None:
        if self._line is not None:
            self._line.close()
        self._line = self._process = None
        for future in self._open.values():
            if not future.done():
                future.set_exception(errors.UnavailableError("transfer process ended"))

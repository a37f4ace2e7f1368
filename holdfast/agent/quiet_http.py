"""The agent's HTTP server: leaves signals alone, and sleeps while nothing is asked."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

import uvicorn


class QuietHttp(uvicorn.Server):
    """Leaves signals to the agent, which has ranks to stop; uvicorn would raise them again when it ends.

    And sleeps until it is to end: uvicorn's own loop polls ten times a second, half of what wakes an idle agent.
    """

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._ended = asyncio.Event()

    def end(self) -> None:
        """Stop serving."""
        self.should_exit = True
        self._ended.set()

    async def main_loop(self) -> None:
        """Serve until :meth:`end`."""
        await self._ended.wait()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Install nothing."""
        yield

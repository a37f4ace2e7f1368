"""Time behind a Protocol, so that tests turn it by hand."""

from __future__ import annotations

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    """Wall clock in seconds since the Unix epoch (comparable across machines), and a sleep."""

    def now(self) -> float:
        """Seconds since the Unix epoch."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait ``seconds``."""
        ...


class SystemClock:
    """The real one."""

    def now(self) -> float:
        """Seconds since the Unix epoch."""
        return time.time()

    async def sleep(self, seconds: float) -> None:
        """Wait ``seconds``."""
        await asyncio.sleep(seconds)


class FakeClock:
    """Stands still until told; ``sleep`` advances it at once."""

    def __init__(self, start: float = 1_000_000.0) -> None:
        self._now = start

    def now(self) -> float:
        """Seconds since the Unix epoch, as last set."""
        return self._now

    def advance(self, seconds: float) -> None:
        """Move forward by ``seconds``."""
        self._now += seconds

    async def sleep(self, seconds: float) -> None:
        """Advance by ``seconds`` and yield once."""
        self.advance(seconds)
        await asyncio.sleep(0)

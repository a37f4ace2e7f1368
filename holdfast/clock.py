"""Time behind a Protocol, so that tests control it."""

from __future__ import annotations

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    """Wall clock in seconds since the Unix epoch (comparable across machines), one that is never set, and a sleep."""

    def now(self) -> float:
        """Seconds since the Unix epoch."""
        ...

    def monotonic(self) -> float:
        """Return the seconds since an arbitrary point, of this process only: for measuring waits."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait ``seconds``."""
        ...


class SystemClock:
    """The real one."""

    def now(self) -> float:
        """Seconds since the Unix epoch."""
        return time.time()

    def monotonic(self) -> float:
        """Return seconds since an arbitrary point."""
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Wait ``seconds``."""
        await asyncio.sleep(seconds)


class FakeClock:
    """A clock that stands still until advanced; ``sleep`` advances it at once."""

    def __init__(self, start: float = 1_000_000.0) -> None:
        self._now, self._past = start, 0.0

    def now(self) -> float:
        """Return seconds since the Unix epoch, as last set."""
        return self._now

    def monotonic(self) -> float:
        """Return seconds that grow with :meth:`advance`, whatever the wall clock is set to."""
        return self._past

    def set(self, now: float) -> None:
        """Set the wall clock, as an operator might."""
        self._now = now

    def advance(self, seconds: float) -> None:
        """Move forward by ``seconds``."""
        self._now += seconds
        self._past += seconds

    async def sleep(self, seconds: float) -> None:
        """Advance by ``seconds`` and yield once."""
        self.advance(seconds)
        await asyncio.sleep(0)

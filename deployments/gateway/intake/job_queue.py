"""Process one alert of a job at a time, with limits on how many may wait, and on which others they wait for.

In an alert storm on a busy host cascading failures come faster than the ledger answers. In one line with them the root
would wait for longer than the cascading failures wait for their root, and every alert that waits takes memory.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count

from holdfast.errors import UnavailableError

MOST_CASCADING = 8
"""Cascading failures of a job that may wait: further ones report the same."""
OTHERS = 512
"""Other alerts of a job that may wait; the senders of more are asked to retry."""


class JobQueue:
    """Bounded: per job of the ledger so many alerts."""

    def __init__(self) -> None:
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._cascading: defaultdict[str, int] = defaultdict(int)
        self._others: defaultdict[str, dict[int, float]] = defaultdict(dict)
        self._numbers = count()

    def cascading_crowded(self, job: str) -> bool:
        """Return whether enough cascading failures of ``job`` wait, so that no further one need wait."""
        return self._cascading[job] >= MOST_CASCADING

    def root_since(self, job: str) -> float | None:
        """Return when the first waiting alert that is no cascading failure arrived; None: none waits."""
        return next(iter(self._others[job].values()), None)

    @asynccontextmanager
    async def of_cascading(self, job: str) -> AsyncIterator[None]:
        """Hold the job's lock for a cascading failure."""
        self._cascading[job] += 1
        try:
            await self._locks[job].acquire()
        finally:
            self._cascading[job] -= 1
        try:
            yield
        finally:
            self._locks[job].release()

    @asynccontextmanager
    async def of_other(self, job: str, received_at: float) -> AsyncIterator[None]:
        """Hold the job's lock for any other alert, received at ``received_at`` (gateway's clock).

        Raises:
            UnavailableError: too many wait.
        """
        waiting = self._others[job]
        if len(waiting) >= OTHERS:
            raise UnavailableError(f"{len(waiting)} alerts of job {job} wait for their turn: send it again")
        number = next(self._numbers)
        waiting[number] = received_at
        try:
            await self._locks[job].acquire()
        finally:
            del waiting[number]
        try:
            yield
        finally:
            self._locks[job].release()

    @asynccontextmanager
    async def of_decision(self, job: str) -> AsyncIterator[None]:
        """Hold the job's lock for a decision about alerts that were held back."""
        async with self._locks[job]:
            yield

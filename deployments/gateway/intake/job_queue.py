"""One alert of a job is looked at at a time; how many may wait for their turn, and who need not wait behind whom.

In an alert storm on a busy host echoes come faster than the ledger answers. In one line with them the root would
wait for longer than the echoes wait for their root, and every alert that waits takes memory.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count

from holdfast.errors import UnavailableError

ECHOES = 8
"""Echoes of a job that may wait: others of them say the same."""
OTHERS = 512
"""Other alerts of a job that may wait; their senders are told to come again."""


class JobQueue:
    """Bounded: per job of the ledger so many alerts."""

    def __init__(self) -> None:
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._echoes: defaultdict[str, int] = defaultdict(int)
        self._others: defaultdict[str, dict[int, float]] = defaultdict(dict)
        self._numbers = count()

    def echo_crowded(self, job: str) -> bool:
        """No further echo of ``job`` need wait."""
        return self._echoes[job] >= ECHOES

    def root_since(self, job: str) -> float | None:
        """When the first of the alerts came that wait and are no echoes; None: none waits."""
        return next(iter(self._others[job].values()), None)

    @asynccontextmanager
    async def of_echo(self, job: str) -> AsyncIterator[None]:
        """The turn of an echo."""
        self._echoes[job] += 1
        try:
            await self._locks[job].acquire()
        finally:
            self._echoes[job] -= 1
        try:
            yield
        finally:
            self._locks[job].release()

    @asynccontextmanager
    async def of_other(self, job: str, received_at: float) -> AsyncIterator[None]:
        """The turn of any other alert, received at ``received_at`` (gateway's clock).

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
        """The turn of a decision about what settles."""
        async with self._locks[job]:
            yield

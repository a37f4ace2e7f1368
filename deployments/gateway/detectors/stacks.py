"""Do the stacks of a silent job change? Asked of its agents, a few seconds apart."""

from __future__ import annotations

import asyncio
import hashlib
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import httpx

from holdfast.agent.client import AgentClient
from holdfast.errors import HoldfastError
from holdfast.models.agent import StackDump
from holdfast.models.job import Job
from holdfast.models.machine import Machine
from holdfast.secret import Keys, keys
from holdfast.tls import PLAIN, Tls

AT_ONCE = 64


class StackReader(Protocol):
    """Reads the stacks of all ranks of a job."""

    async def read(self, job: Job, machines: Mapping[str, Machine]) -> dict[int, str]:
        """Return a digest of each rank's stacks; ranks that could not be read are left out."""
        ...


class HttpStacks:
    """Through the agents."""

    def __init__(self, http: httpx.AsyncClient, secret: str | Keys, tls: Tls = PLAIN) -> None:
        self._http = http
        self._secret = keys(secret)
        self._tls = tls
        self._turns = asyncio.Semaphore(AT_ONCE)

    async def read(self, job: Job, machines: Mapping[str, Machine]) -> dict[int, str]:
        """Ask all machines of the job at once, so many at a time."""
        known = [machines[name] for name in job.machines if name in machines]
        found: dict[int, str] = {}
        for each in await asyncio.gather(*(self._of(machine, job) for machine in known)):
            found |= each
        return found

    async def _of(self, machine: Machine, job: Job) -> dict[int, str]:
        """Return the digests of one machine's ranks: the stacks of a thousand machines would be a million frames."""
        async with self._turns:
            try:
                dumps = await AgentClient(
                    machine.address, self._secret, http=self._http, tls=self._tls
                ).stacks(job.name, job.epoch)
            except HoldfastError:
                return {}
            return digests(dumps)


def digests(dumps: list[StackDump]) -> dict[int, str]:
    """Return one digest per rank, over all of its threads; children (data loaders) are left out."""
    texts: defaultdict[int, list[str]] = defaultdict(list)
    for dump in dumps:
        if dump.rank is not None and not dump.child and not dump.error:
            frames = ";".join(f"{frame.function}:{frame.file}:{frame.line}" for frame in dump.frames)
            texts[dump.rank].append(f"{dump.thread}|{frames}")
    return {
        rank: hashlib.blake2s("\n".join(sorted(found)).encode(), digest_size=8).hexdigest()
        for rank, found in texts.items()
    }


@dataclass
class StackHistory:
    """The last samples of one silent job."""

    epoch: int
    asked_at: float = float("-inf")
    """By a clock that is never set."""
    equal: dict[int, tuple[str, int]] = field(default_factory=dict)
    """Rank to its digest and how many samples in a row had it."""
    moved: frozenset[int] = frozenset()
    """Ranks whose newest two samples differ."""

    def add(self, found: Mapping[int, str]) -> None:
        """Take one sample."""
        before = self.equal
        self.moved = frozenset(
            rank for rank, digest in found.items() if rank in before and before[rank][0] != digest
        )
        self.equal = {
            rank: (digest, self.equal[rank][1] + 1 if self.equal.get(rank, ("", 0))[0] == digest else 1)
            for rank, digest in found.items()
        }

    def unchanged(self, samples: int) -> frozenset[int]:
        """Return the ranks whose stacks were the same in so many samples."""
        return frozenset(rank for rank, (_, count) in self.equal.items() if count >= samples)

"""Parts of a machine that are simulated: shared memory, code, restored states, forks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.agent.ranks.rank_main import RankOrder
from holdfast.agent.ranks.run import Restored
from holdfast.errors import CheckpointError
from holdfast.models import agent as wire
from holdfast.models.checkpoint import Shard
from tests.nemesis import replicas

if TYPE_CHECKING:
    from tests.nemesis.machines import Host


class Nothing:
    """Stands in for what a simulated machine has not: whatever it is asked to do, it does nothing."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_args, **_named: None


class Memory(Nothing):
    """The machine's shared memory, as a table."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self.root = Path("/sim") / host.name
        self.accept_from: dict[str, int] = {}

    def shards(self, saved: tuple[str, int] | None = None) -> tuple[Shard, ...]:
        """All that lie here, or those of one step of a job."""
        return tuple(
            shard for shard in self._host.shards.values() if saved in (None, (shard.job, shard.step))
        )

    def own(self, job: str) -> Path:
        """A name."""
        return self.root / job

    def resume_after(self, job: str, step: int) -> None:
        """Forget what is newer."""
        self._drop(lambda shard: shard.job == job and shard.step > step)

    def forget(self, job: str) -> None:
        """Forget all."""
        before = self._host.site.common_step()
        self._drop(lambda shard: shard.job == job)
        self._host.site.forgot(self._host, job, before)

    def _drop(self, which: Callable[[Shard], bool]) -> None:
        self._host.shards = {key: shard for key, shard in self._host.shards.items() if not which(shard)}


class Supply(Nothing):
    """Code and states for ranks."""

    def __init__(self, host: Host) -> None:
        self._host = host

    async def code(self, job: str, version: str, neighbours: object = ()) -> Path:
        """Check it out."""
        await asyncio.sleep(0.01)
        return Path("/sim/code")

    def versions(self, job: str) -> tuple[str, ...]:
        """Any."""
        return ("v1",)

    async def restored(self, start: wire.Start, rank: int) -> Restored:
        """From this machine's memory or another's, over the network."""
        order, site = start.restore, self._host.site
        await asyncio.sleep(0.01)
        mine = [source for source in (*order.sources, *order.fallbacks) if source.read_by == rank]
        # Of another number of ranks each reads some, and all exchange.
        for wanted in {source.rank for source in mine} if order.saved_by else {rank}:
            for source in mine:
                holder = site.hosts.get(source.machine)
                if source.rank != wanted or holder is None or not holder.up:
                    continue
                which = start.job, wanted, order.step
                there = any((s.job, s.rank, s.step) == which for s in holder.shards.values())
                if there and site.network.is_open(holder.name, self._host.name):
                    break
            else:
                raise CheckpointError(f"step {order.step} rank {wanted}: no source has it")
        return Restored(order.step, "memory")


class Forks(Nothing):
    """Starts processes on the host."""

    warm, waiting = True, 99

    def __init__(self, host: Host) -> None:
        self.host = host

    async def warm_up(self) -> None:
        """It is."""

    async def keep_spares(self, _wanted: object) -> None:
        """They are there."""
        await asyncio.get_running_loop().create_future()

    async def run_soon(self, _target: object, args: tuple[RankOrder]) -> replicas.ReplicaProcess:
        """Start a replica."""
        await asyncio.sleep(0.005)
        return replicas.ReplicaProcess(self.host, *args)

    start = warm_up

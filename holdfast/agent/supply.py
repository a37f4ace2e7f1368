"""What a start needs on this machine before ranks are forked: the job's code, and the state to resume from."""

from __future__ import annotations

import asyncio
import shutil
from collections import defaultdict
from pathlib import Path

from holdfast.agent import shard_port
from holdfast.agent.carrier import Carrier
from holdfast.agent.memory import Memory, base_job
from holdfast.agent.run import Restored
from holdfast.errors import CheckpointError
from holdfast.models.agent import FetchShard, Start
from holdfast.models.checkpoint import Tier
from holdfast.storage.remote import MANIFEST

_CHECKOUT_S = 50.0
_DOWNLOAD_S = 600.0


class Supply:
    """Checkouts, downloads and shards, each brought here once however often it is asked for."""

    def __init__(self, carrier: Carrier, memory: Memory, folder: Path, secret: str) -> None:
        self._carrier = carrier
        self._memory = memory
        self._folder = folder
        self._secret = secret
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def code(self, job: str, version: str) -> Path:
        """The checkout of a code version, made if it is not there."""
        folder = self._folder / "code" / base_job(job) / version
        async with self._locks[str(folder)]:
            if not folder.is_dir():
                await self._carrier.call(
                    "checkout", _CHECKOUT_S, job=base_job(job), version=version, folder=str(folder)
                )
        return folder

    async def checkpoint(self, start: Start) -> Path | None:
        """The folder with the checkpoint that ``start`` resumes from, if that one lies in the object store."""
        if start.restore.tier is not Tier.S3:
            return None
        kept = self._folder / "ckpt" / base_job(start.job)
        folder = kept / start.restore.key.rstrip("/").rpartition("/")[2]
        async with self._locks[str(folder)]:
            if not (folder / MANIFEST).exists():
                for old in kept.glob("step-*"):
                    await asyncio.to_thread(shutil.rmtree, old, ignore_errors=True)
                await self._carrier.call("download", _DOWNLOAD_S, key=start.restore.key, folder=str(folder))
        return folder

    async def shard(self, command: FetchShard) -> None:
        """Have a shard in this machine's memory, where its rank will look for it and write the next ones."""
        job = base_job(command.job)
        async with self._locks[f"shard {job} {command.rank}"]:
            if self._memory.find(job, command.rank, command.step) is None:
                await asyncio.to_thread(
                    shard_port.pull,
                    command.source,
                    self._secret,
                    job=job,
                    rank=command.rank,
                    step=command.step,
                    folder=self._memory.own(job),
                )

    def restored(self, start: Start, checkpoint: Path | None) -> dict[int, Restored]:
        """Where each rank of ``start`` finds its state.

        Raises:
            CheckpointError: a shard is not here.
        """
        order = start.restore
        if order.tier is None:
            return {rank: Restored(order.step, None, "") for rank in start.ranks}
        if order.tier is Tier.S3:
            return {rank: Restored(order.step, order.tier.value, str(checkpoint)) for rank in start.ranks}
        job = base_job(start.job)
        return {
            rank: Restored(
                order.step, Tier.MEMORY.value, str(self._memory.require(job, shard, order.step)[0])
            )
            for rank, shard in _shards_of(start).items()
        }

    def forget(self, job: str) -> None:
        """Drop what was downloaded for a job that ended."""
        shutil.rmtree(self._folder / "ckpt" / job, ignore_errors=True)


def _shards_of(start: Start) -> dict[int, int]:
    """Rank -> the rank whose shard it resumes from.

    In a replay ranks are numbered anew, so its i-th rank on this machine takes the i-th source.
    """
    if start.replay is None or not start.restore.sources:
        return {rank: rank for rank in start.ranks}
    sources = [source.rank for source in start.restore.sources]
    if len(sources) < len(start.ranks):
        raise CheckpointError(f"replay {start.job!r}: {len(sources)} sources for {len(start.ranks)} ranks")
    return dict(zip(start.ranks, sources, strict=False))

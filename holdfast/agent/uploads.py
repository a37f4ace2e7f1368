"""Every k steps: the shards of this machine to the object store, beside the training."""

from __future__ import annotations

import asyncio
import logging
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from holdfast.agent.carrier import Carrier
from holdfast.agent.memory import Memory
from holdfast.agent.metrics import Metrics
from holdfast.agent.run import Run
from holdfast.errors import CheckpointError, HoldfastError
from holdfast.models.checkpoint import RemoteCheckpoint
from holdfast.storage import remote
from holdfast.storage.checkpoints import buffers

_log = logging.getLogger(__name__)

_PART_S = 600.0  # bound on one part's upload
_PARTS_S = 120.0  # how long rank 0's machine waits for the others' parts
_AT_ONCE = 2  # uploads under way per rank; a slow store skips checkpoints, it does not pile them up


class Uploads:
    """Copies a due shard aside at once (its slot is reused soon), then has the carrier upload it."""

    def __init__(
        self,
        carrier: Carrier,
        memory: Memory,
        folder: Path,
        metrics: Metrics,
        done: Callable[[RemoteCheckpoint], None],
    ) -> None:
        self._carrier = carrier
        self._memory = memory
        self._folder = folder
        self._metrics = metrics
        self._done = done
        self._under_way: Counter[tuple[str, int]] = Counter()
        self._newest: dict[tuple[str, int], int] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def saved(self, run: Run, rank: int, step: int, path: Path) -> None:
        """A shard is complete in memory: upload it if its step is due."""
        every = run.start.s3_every_steps
        if every == 0 or step % every or run.start.replay is not None:
            return
        if step <= self._newest.get((run.name, rank), 0):
            return  # said twice
        self._newest[(run.name, rank)] = step
        key = (run.start.job, rank)
        if self._under_way[key] >= _AT_ONCE:
            self._metrics.uploads.labels("skipped").inc()
            _log.warning("step %d of job %s is not uploaded: the store is behind", step, run.start.job)
            return
        self._under_way[key] += 1
        task = asyncio.get_running_loop().create_task(self._upload(run, rank, step, path))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda _: self._under_way.subtract([key]))

    async def _upload(self, run: Run, rank: int, step: int, path: Path) -> None:
        start = run.start
        key = remote.checkpoint_key(start.job, step, start.epoch)
        staged = self._folder / start.job / "staging" / f"{step}-e{start.epoch}-r{rank}"
        try:
            # Read before the copy ends: a later plan may replace it.
            metadata = await asyncio.to_thread(self._stage, run, rank, step, path, staged)
            await self._carrier.call("put_part", _PART_S, path=str(staged), key=key, rank=rank)
            if rank == 0:
                await self._finish(run, step, key, metadata)
            self._metrics.uploads.labels("ok").inc()
        except (HoldfastError, OSError) as error:
            self._metrics.uploads.labels("failed").inc()
            _log.warning("rank %d of checkpoint %s is not in the object store: %s", rank, key, error)
        finally:
            staged.unlink(missing_ok=True)

    def _stage(self, run: Run, rank: int, step: int, path: Path, staged: Path) -> bytes:
        metadata = b""
        if rank == 0:
            metadata = buffers.metadata_path(self._memory.own(run.start.job), run.start.epoch).read_bytes()
        copy_owned(path, step, staged)
        return metadata

    async def _finish(self, run: Run, step: int, key: str, metadata: bytes) -> None:
        start = run.start
        uploaded = await self._carrier.call(
            "finish",
            _PARTS_S + 60.0,
            key=key,
            job=start.job,
            step=step,
            epoch=start.epoch,
            world_size=start.world_size,
            metadata=metadata,
            wait_s=_PARTS_S,
        )
        self._done(uploaded)


def copy_owned(path: Path, step: int, target: Path) -> None:
    """Copy the part of a shard that its rank contributes to the checkpoint.

    Raises:
        CheckpointError: the shard is not that of ``step``, or was overwritten during the copy.
    """
    header = buffers.read_header(path)
    if header is None or header.step != step:
        raise CheckpointError(f"shard {path} no longer holds step {step}")
    target.parent.mkdir(parents=True, exist_ok=True)
    with path.open("rb") as source, target.open("wb") as out:
        offset, left = header.payload_offset, header.owned_nbytes
        while left:
            count = os.sendfile(out.fileno(), source.fileno(), offset, left)
            if count == 0:
                raise CheckpointError(f"shard {path} is shorter than its header says")
            offset, left = offset + count, left - count
    if buffers.read_header(path) != header:
        raise CheckpointError(f"shard {path}: step {step} was overwritten during the copy")

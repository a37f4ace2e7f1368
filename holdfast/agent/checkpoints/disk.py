"""Copies of shards on the machine's own disk, for jobs that want them: they outlive a reboot."""

from __future__ import annotations

import asyncio
import logging
import os
from pathlib import Path

from holdfast import durable
from holdfast.agent.checkpoints.memory import Memory
from holdfast.agent.checkpoints.newest import Newest
from holdfast.agent.checkpoints.setbacks import Setbacks
from holdfast.agent.metrics import Metrics
from holdfast.agent.ranks.run import Run
from holdfast.errors import CheckpointError
from holdfast.models.setback import Place
from holdfast.policies.restore.upload_pace import is_due
from holdfast.storage.checkpoints.save import buffers, slot_files
from holdfast.storage.checkpoints.save.odd_files import make_way

_log = logging.getLogger(__name__)


class DiskTier:
    """Copies due shards, one at a time per rank; the newest two of each rank stay.

    A copy appears under its name only when it is whole and on the disk. What does not fit is left out, counted and
    reported, and the copies that are already there stay.
    """

    def __init__(
        self, memory: Memory, limit_nbytes: int, metrics: Metrics, setbacks: Setbacks | None = None
    ) -> None:
        self._memory = memory
        self._limit_nbytes = limit_nbytes
        self._metrics = metrics
        self._setbacks = setbacks or Setbacks()
        self._busy: set[tuple[str, int]] = set()
        self._newest = Newest()
        self._tasks: set[asyncio.Task[None]] = set()

    def saved(self, run: Run, rank: int, step: int, path: Path, *, since: int) -> None:
        """Copy this rank's shard of a step that all ranks saved, if the step is due. May be called twice.

        ``since``: the step before it that all ranks saved, or began with.
        """
        who = (run.start.job, rank)
        if not is_due(step, since, run.start.disk_every_steps) or run.start.replay is not None:
            return
        if not self._newest.take(run, rank, step):
            return
        if who in self._busy:
            self._metrics.disk_copies.labels("skipped").inc()
            return
        loan = self._memory.transfers_beside(path) / f"disk-{run.start.job}-{rank}-{step}.shard"
        try:
            # Not when the copy begins: otherwise it could leave a folder behind for a job that was forgotten meanwhile.
            durable.make_folder(self._memory.disk(run.start.job))
            header = slot_files.lend(path, step, loan)
        except (CheckpointError, OSError) as error:
            self._failed(run, rank, error)
            return
        self._busy.add(who)
        task = asyncio.get_running_loop().create_task(self._copy(run, path, loan, header))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda _: self._busy.discard(who))

    async def _copy(self, run: Run, slot: Path, loan: Path, header: buffers.ShardHeader) -> None:
        folder = self._memory.disk(header.job)
        try:
            await asyncio.to_thread(write, loan, header, folder, self._limit_nbytes)
            self._metrics.disk_copies.labels("ok").inc()
            self._setbacks.went_well(run.start.job, run.start.epoch, Place.DISK, header.rank)
        except (CheckpointError, OSError) as error:
            self._failed(run, header.rank, error)
        finally:
            slot_files.release(slot, loan)

    def _failed(self, run: Run, rank: int, error: Exception) -> None:
        self._metrics.disk_copies.labels("failed").inc()
        self._setbacks.failed(run.start.job, run.start.epoch, Place.DISK, rank, error)
        _log.warning("no copy on the disk: %s", error)


def write(shard: Path, header: buffers.ShardHeader, folder: Path, limit_nbytes: int) -> Path:
    """Copy a shard over the older of the rank's two in ``folder``; it is there whole or not at all.

    Args:
        shard: lent for the copy.
        header: of the shard.
        folder: of the job, made before; all jobs' folders beside it count for the limit.
        limit_nbytes: of all shards on the disk.

    Raises:
        CheckpointError: it does not fit, or was overwritten meanwhile.
        OSError: the disk is full or broken, or the job was forgotten.
    """
    if _held(folder, header):
        return buffers.slot_to_overwrite(folder, header.rank)
    target = buffers.slot_to_overwrite(folder, header.rank)
    others = sum(path.lstat().st_size for path in folder.parent.glob("*/*.shard") if path != target)
    if others + header.file_nbytes > limit_nbytes:
        raise CheckpointError(
            f"shard of job {header.job!r} rank {header.rank} step {header.step}: {header.file_nbytes} bytes more than "
            f"the {others} that are there exceed HOLDFAST_DISK_MIB ({limit_nbytes >> 20} MiB)"
        )
    fresh = target.with_suffix(".part")
    make_way(target)
    try:
        _copy(shard, fresh, header.file_nbytes)
        if buffers.read_header(fresh) != header or buffers.read_header(shard) != header:
            raise CheckpointError(f"shard {shard}: step {header.step} was overwritten during its copy")
        durable.replace(fresh, target, "disk")
    finally:
        fresh.unlink(missing_ok=True)
    return target


def _held(folder: Path, header: buffers.ShardHeader) -> bool:
    """Return whether ``folder`` has that very shard."""
    return any(held == header for _, held in buffers.inventory(folder))


def _copy(source: Path, target: Path, nbytes: int) -> None:
    with source.open("rb") as given, target.open("wb") as out:
        at = 0
        while at < nbytes:
            sent = os.sendfile(out.fileno(), given.fileno(), at, nbytes - at)
            if sent == 0:
                raise CheckpointError(f"shard {source} is shorter than its header says")
            at += sent

"""Shards of this machine to the object store, beside the training: every k steps, and on command."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path

from holdfast.agent.checkpoints.memory import Memory
from holdfast.agent.checkpoints.newest import Newest
from holdfast.agent.checkpoints.setbacks import Setbacks
from holdfast.agent.checkpoints.transfer_process import TransferProcess
from holdfast.agent.metrics import Metrics
from holdfast.agent.ranks.run import Run
from holdfast.errors import CheckpointError, HoldfastError
from holdfast.models.agent import Persist
from holdfast.models.checkpoint import RemoteCheckpoint, Retention
from holdfast.models.setback import Place
from holdfast.policies.restore import retention
from holdfast.policies.restore.upload_pace import Pace
from holdfast.storage.checkpoints.remote import manifests
from holdfast.storage.checkpoints.remote.garbage import Collected
from holdfast.storage.checkpoints.save import buffers, part_copy, slot_files

_log = logging.getLogger(__name__)

_TIDY_S = 300.0  # bound on one look for what is to be deleted
_AT_ONCE = (
    1  # shards of one rank that are lent at a time: two would share the same line, and take twice the memory
)
_COMPLETING = 4  # checkpoints of one job that wait here for other machines' parts


@dataclass(frozen=True)
class UploadLimits:
    """Bounds of uploads (``HOLDFAST_S3_*``)."""

    part_s: float
    """For one rank's part of a checkpoint."""
    parts_s: float
    """How long one machine waits for the others' parts."""
    object_nbytes: int
    """A rank's part is split into objects of at least this size."""
    tidy_s: float = 600.0
    """Between two looks for what is to be deleted."""

    @property
    def grace_s(self) -> float:
        """No upload takes this long: anything older and incomplete is garbage."""
        return retention.upload_grace_s(self.part_s, self.parts_s)


@dataclass(frozen=True)
class _Loan:
    """A shard that is lent to its upload: it takes memory until it is given back."""

    slot: Path
    name: Path
    header: buffers.ShardHeader
    single: bool
    """It is the only one: the rank saves nothing until it gets the buffer back."""

    @property
    def key(self) -> str:
        return manifests.checkpoint_key(self.header.job, self.header.step, self.header.epoch)

    def read_metadata(self) -> bytes:
        """Return the checkpoint's ``.metadata``, which lies beside rank 0's shard and beside its copy; else nothing.

        Read at once: a later plan, or the job's end, may remove it.
        """
        if self.header.rank:
            return b""
        return buffers.metadata_path(self.slot.parent, self.header.plan).read_bytes()


class Uploads:
    """Lends due shards to the carrier process, and gives them back.

    Memory is bounded: while an upload is under way the slot's next save takes a new file (unless the rank's part is
    small: that is copied), and steps that become due meanwhile are left out and counted, never queued.
    """

    def __init__(
        self,
        carrier: TransferProcess,
        memory: Memory,
        limits: UploadLimits,
        metrics: Metrics,
        *,
        done: Callable[[RemoteCheckpoint], None],
        dropped: Callable[[str, tuple[str, ...]], None],
        setbacks: Setbacks | None = None,
    ) -> None:
        self._carrier = carrier
        self._memory = memory
        self._limits = limits
        self._metrics = metrics
        self._done = done
        self._dropped = dropped
        self._setbacks = setbacks or Setbacks()
        self._tidied_at: dict[str, float] = {}
        self._pace: defaultdict[tuple[str, int], Pace] = defaultdict(Pace)
        self._under_way: defaultdict[tuple[str, int], set[str]] = defaultdict(set)
        self._sent: dict[tuple[str, int], tuple[str, float]] = {}
        """Of each rank the checkpoint that its part was sent to last, and when (monotonic seconds)."""
        self._completing: Counter[str] = Counter()
        self._newest = Newest()
        self._tasks: set[asyncio.Task[object]] = set()

    def saved(self, run: Run, rank: int, step: int, path: Path, *, since: int) -> None:
        """Upload this rank's shard of a step that all ranks saved, if the step is due. May be called twice.

        ``since``: the step before it that all ranks saved, or began with.
        """
        who, every = (run.start.job, rank), run.start.s3_every_steps
        pace = self._pace[who]
        if run.start.replay is not None or not pace.due(step, since, every):
            return
        if not self._newest.take(run, rank, step):
            return
        if len(self._under_way[who]) >= _AT_ONCE or self._completing[run.start.job] >= _COMPLETING:
            self._pace[who] = pace.skipped()
            self._metrics.uploads.labels("skipped").inc()
            _log.warning("step %d of job %s is not uploaded: the store is behind", step, run.start.job)
            return
        try:
            loan = self._lend(rank, step, run.start.epoch, path, single=run.start.copies.own == 1)
        except CheckpointError as error:
            self._failed(run.start.job, run.start.epoch, rank, f"step {step}", error)
            return
        self._under_way[who].add(loan.key)
        self._soon(self._due(loan, run, pace))

    async def persist(self, order: Persist) -> None:
        """Upload what this machine holds of one step, due or not; return when nothing can harm it any more.

        What is already under way is not sent twice, nor what was sent and waits for the other ranks' parts.

        Raises:
            CheckpointError: a shard, or rank 0's ``.metadata``, is not here.
        """
        key = manifests.checkpoint_key(order.job, order.step, order.shard_epoch)
        loans: list[_Loan] = []
        try:
            for rank in order.ranks:
                if key not in self._under_way[order.job, rank] and not self._was_sent(order.job, rank, key):
                    slot, _ = self._memory.require(order.job, rank, order.step, order.shard_epoch)
                    single = self._memory.is_single(slot)
                    loans.append(self._lend(rank, order.step, order.shard_epoch, slot, single=single))
                    if loans[-1].key != key:
                        raise CheckpointError(f"machine holds {loans[-1].key} of rank {rank}, not {key}")
                    # At once: an order that comes while the metadata is read would lend it under the same name.
                    self._under_way[order.job, rank].add(key)
            metadata = [await asyncio.to_thread(loan.read_metadata) for loan in loans]
        except BaseException as error:
            for loan in loans:
                slot_files.release(loan.slot, loan.name)
                self._under_way[order.job, loan.header.rank].discard(key)
            if not isinstance(error, CheckpointError | OSError):
                raise
            raise CheckpointError(f"{key} cannot be saved from this machine: {error}") from error
        for loan, each in zip(loans, metadata, strict=True):
            self._soon(self._upload(loan, each, order.world_size, in_order=False))

    async def _due(self, loan: _Loan, run: Run, pace: Pace) -> None:
        """Do a periodic upload; one that ends in time lets the pace grow again."""
        who = (loan.header.job, loan.header.rank)
        try:
            metadata = await asyncio.to_thread(loan.read_metadata)
        except OSError as error:
            slot_files.release(loan.slot, loan.name)
            self._under_way[who].discard(loan.key)
            self._failed(loan.header.job, loan.header.epoch, 0, f"checkpoint {loan.key}", error)
            return
        if not await self._upload(loan, metadata, run.start.world_size, in_order=True):
            return
        if self._pace[who] == pace:
            self._pace[who] = pace.kept_up()
        if loan.header.rank == 0:
            await self._tidy(loan.header.job, run.start.retention)

    async def _upload(self, loan: _Loan, metadata: bytes, world_size: int, *, in_order: bool) -> bool:
        """Send a loan and give it back, complete the checkpoint if it is rank 0's; return whether that succeeded."""
        header = loan.header
        who = (header.job, header.rank)
        try:
            try:
                await self._send(loan)
                self._sent[who] = loan.key, time.monotonic()
            finally:
                slot_files.release(loan.slot, loan.name)
                self._under_way[who].discard(loan.key)
            if header.rank == 0:
                try:
                    await self._complete(loan, world_size, metadata, in_order=in_order)
                finally:
                    # Ordered again, the checkpoint is completed again, or reported again if it is there.
                    self._sent.pop(who, None)
        except (HoldfastError, OSError) as error:
            self._failed(header.job, header.epoch, header.rank, f"checkpoint {loan.key}", error)
            return False
        self._metrics.uploads.labels("ok").inc()
        self._setbacks.went_well(header.job, header.epoch, Place.S3, header.rank)
        return True

    def _was_sent(self, job: str, rank: int, key: str) -> bool:
        """Return whether the rank's part is in the store, long before anything there counts as garbage."""
        sent, at = self._sent.get((job, rank), ("", 0.0))
        return sent == key and time.monotonic() - at < self._limits.part_s + self._limits.parts_s

    async def _send(self, loan: _Loan) -> None:
        """Send a copy where the rank's part is small, which ends the loan at once; else send the lent shard itself."""
        part = await self._part(loan)
        if part is None:
            await self._reserve(loan)
        else:
            slot_files.release(loan.slot, loan.name)
        try:
            await self._carrier.call(
                "put_part",
                self._limits.part_s + 30.0,
                path=str(part or loan.name),
                key=loan.key,
                object_nbytes=self._limits.object_nbytes,
                within_s=self._limits.part_s,
            )
        finally:
            if part is not None:
                part.unlink(missing_ok=True)

    async def _part(self, loan: _Loan) -> Path | None:
        """Copy what the rank contributes; return None when that is large, or there is no room for it.

        A large part of a single buffer waits on the disk: the rank needs the buffer, and S3 may be slow.
        """
        folder = None
        if not part_copy.is_small(loan.header):
            if not loan.single:
                return None
            folder = self._memory.transfers_on_disk(part_copy.nbytes(loan.header))
            if folder is None:
                _log.warning("%s is pinned until it is uploaded; no step is saved meanwhile", loan.slot)
                return None
        try:
            return await asyncio.to_thread(part_copy.take, loan.name, loan.header, folder)
        except OSError as error:
            _log.info("%s is pinned, not copied: %s", loan.slot, error)
            return None

    async def _reserve(self, loan: _Loan) -> None:
        """Reserve memory for the slot's next save, unless no rank saves there, or it has a new file already."""
        if loan.single or self._memory.is_on_disk(loan.slot) or not slot_files.is_lent(loan.slot):
            return
        try:
            await asyncio.to_thread(slot_files.reserve, loan.slot, loan.header.file_nbytes)
        except CheckpointError as error:
            _log.warning("%s: the next save has to wait for memory", error)

    async def _complete(self, loan: _Loan, world_size: int, metadata: bytes, *, in_order: bool) -> None:
        header = loan.header
        self._completing[header.job] += 1
        try:
            uploaded: RemoteCheckpoint = await self._carrier.call(
                "finish",
                self._limits.parts_s + 60.0,
                key=loan.key,
                job=header.job,
                step=header.step,
                epoch=header.epoch,
                world_size=world_size,
                metadata=metadata,
                wait_s=self._limits.parts_s,
                in_order=in_order,
            )
        finally:
            self._completing[header.job] -= 1
        self._done(uploaded)

    async def _tidy(self, job: str, rules: Retention) -> None:
        """Delete what is not to be kept, now and then, on the machine that completes the job's checkpoints."""
        now = time.monotonic()
        if now < self._tidied_at.get(job, -self._limits.tidy_s) + self._limits.tidy_s:
            return
        self._tidied_at[job] = now
        try:
            tidied: Collected = await self._carrier.call(
                "collect_garbage", _TIDY_S, job=job, rules=rules, grace_s=self._limits.grace_s
            )
        except HoldfastError as error:
            _log.warning("old checkpoints of job %s are not deleted: %s", job, error)
            return
        if tidied.objects or tidied.uploads:
            _log.info("job %s: deleted %d objects, %d bytes", job, tidied.objects, tidied.nbytes)
        if tidied.dropped:
            self._dropped(job, tidied.dropped)

    def _lend(self, rank: int, step: int, epoch: int, slot: Path, *, single: bool) -> _Loan:
        """Move a shard out of the way of later saves: a link, no copy.

        The name is that of one save: an epoch that repeats a step must not end the loan of the one before.
        """
        which = f"{slot.parent.parent.name}-{slot.parent.name}-{rank}-{step}-e{epoch}.shard"
        name = self._memory.transfers_beside(slot) / which
        return _Loan(slot, name, slot_files.lend(slot, step, name), single)

    def _failed(self, job: str, epoch: int, rank: int, what: str, error: Exception) -> None:
        self._metrics.uploads.labels("failed").inc()
        self._setbacks.failed(job, epoch, Place.S3, rank, error)
        _log.warning("job %s rank %d: %s is not in the object store: %s", job, rank, what, error)

    def _soon(self, work: Coroutine[None, None, object]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

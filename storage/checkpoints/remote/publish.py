"""Writes checkpoints to the object store, straight from shared memory.

Every rank's machine uploads the rank's part as files and records them in ``parts/<rank>.json``. When all have, one
machine writes ``.metadata`` and, last, the manifest: from then on there is a checkpoint. A file with the same
content as in the newest complete checkpoint is referred to, not sent.
"""

from __future__ import annotations

import io
import mmap
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

import xxhash
from pydantic import ValidationError

from holdfast import failpoint
from holdfast.clock import Clock, SystemClock
from holdfast.errors import CheckpointError, UnknownError
from holdfast.models.base import Frozen
from holdfast.models.checkpoint import RemoteCheckpoint
from holdfast.storage.checkpoints.format import plan_file
from holdfast.storage.checkpoints.format.blocks import BlockDigests, digest_blocks
from holdfast.storage.checkpoints.format.plan_file import PlanFile
from holdfast.storage.checkpoints.remote import manifests
from holdfast.storage.checkpoints.remote.manifests import (
    BOXES,
    BOXES_PART,
    MANIFEST,
    METADATA,
    Manifest,
    PartFile,
    Parts,
    RemoteFile,
    object_key,
)
from holdfast.storage.checkpoints.save import buffers
from holdfast.storage.objects import ObjectStore

_FILES_AT_ONCE = 2
_READERS = 8
_DIGEST_BYTES = 1 << 20
_LARGE_BYTES = 64 << 20
"""More is sent in parts."""
_POLL_S = (0.1, 2.0)
"""First and longest pause between two looks for missing parts."""
_OVERTAKEN_EVERY_S = 5.0
"""Between two looks whether a rank whose part is missing sent that of a later step already."""


class Uploaded(Frozen):
    """The contribution of one rank."""

    nbytes: int
    """Of its part of the checkpoint."""
    sent_nbytes: int
    """Of the files that were not there already."""


@dataclass(frozen=True)
class _Upload:
    """One rank's upload."""

    store: ObjectStore
    key: str
    known: Mapping[str, PartFile]
    """Files of the rank in the newest complete checkpoint, by plain name."""
    base: str
    give_up_at: float

    def file(self, name: str, start: int, view: memoryview) -> PartFile:
        """Have a file in the store."""
        whole, blocks = xxhash.xxh3_128(), BlockDigests(len(view))
        for at in range(0, len(view), _DIGEST_BYTES):
            piece = view[at : at + _DIGEST_BYTES]
            whole.update(piece)
            blocks.update(piece)
        part = PartFile(
            name=name, start=start, nbytes=len(view), digest=whole.hexdigest(), blocks=blocks.finish()
        )
        if (there := self._same(part)) is not None:
            return part.model_copy(update={"name": there})
        left_s = self.give_up_at - time.monotonic()
        self.store.put_view(object_key(self.key, name), view, within_s=left_s)
        failpoint.here("s3.file")
        return part

    def _same(self, part: PartFile) -> str | None:
        """Name of an object with the same bytes, if there is one."""
        known = self.known.get(part.name)
        if known is None or (known.nbytes, known.digest) != (part.nbytes, part.digest) or not part.nbytes:
            return None
        key = object_key(self.base, known.name)
        try:
            there = self.store.head(key).nbytes == part.nbytes
        except UnknownError:
            return None
        return manifests.reference(self.store.bucket, key) if there else None


def put_rank(store: ObjectStore, shard: Path, key: str, *, object_nbytes: int, within_s: float) -> Uploaded:
    """Upload one rank's part of a checkpoint from its shard file, then record that it is complete.

    Args:
        store: the bucket.
        shard: the rank's shard, lent for the transfer (:func:`slot_files.lend`).
        key: prefix of the checkpoint.
        object_nbytes: the part is split into files of at least this size.
        within_s: seconds after which it is given up.

    Raises:
        CheckpointError: the shard is not of that checkpoint, or was overwritten meanwhile.
        UnavailableError: the store does not answer, or not in time.
    """
    give_up_at = time.monotonic() + within_s
    with shard.open("rb") as file:
        # Not closed explicitly: views of it are freed with the exception.
        buf = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    header = _header_of(buf, shard, key)
    base = manifests.newest_complete(store, header.job) or ""
    if base == key:
        return Uploaded(nbytes=header.owned_nbytes, sent_nbytes=0)
    known = _known(store, base, header.rank)
    upload = _Upload(store, key, known, base, give_up_at)
    own = memoryview(buf)[header.payload_offset :][: header.owned_nbytes]
    spans = _spans(buf, header, object_nbytes)
    with ThreadPoolExecutor(_FILES_AT_ONCE, thread_name_prefix="files") as pool:
        sending = [
            pool.submit(upload.file, f"__{header.rank}_{number}.distcp", start, own[start:end])
            for number, (start, end) in enumerate(spans)
        ]
        try:
            files = tuple(each.result() for each in sending)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    if buffers.parse_header(buf) != header:
        raise CheckpointError(f"shard {shard}: step {header.step} was overwritten during its upload")
    parts = Parts(files=files, replicated=header.replicated)
    store.put(object_key(key, manifests.parts_name(header.rank)), parts.model_dump_json().encode())
    failpoint.here("s3.part")
    sent = sum(part.nbytes for part in files if not part.name.startswith("/"))
    return Uploaded(nbytes=header.owned_nbytes, sent_nbytes=sent)


def finish(
    store: ObjectStore,
    *,
    key: str,
    job: str,
    step: int,
    epoch: int,
    world_size: int,
    metadata: bytes,
    wait_s: float,
    in_order: bool = False,
    clock: Clock | None = None,
) -> RemoteCheckpoint:
    """Wait for the parts of all ranks, then write both forms of the metadata and, last, the manifest that counts.

    A checkpoint that is complete already is left unchanged. ``metadata`` is the plan's, as rank 0 keeps it
    (:mod:`~holdfast.storage.checkpoints.format.plan_file`).

    Args:
        wait_s: longest wait for parts, in seconds.
        in_order: each rank sends the parts of its steps in their order: one that sent a later one skipped this.

    Raises:
        CheckpointError: some parts did not come within ``wait_s`` seconds, or will not come; do not fit ``metadata``;
            or are not of one state.
        UnavailableError: the store does not answer.
    """
    if store.exists(object_key(key, MANIFEST)):
        return manifests.describe(store, key)
    _await_parts(store, key, world_size, wait_s, job if in_order else "")
    with ThreadPoolExecutor(_READERS, thread_name_prefix="parts") as readers:
        parts = list(readers.map(lambda rank: read_parts(store, key, rank), range(world_size)))
    require_alike(key, parts)
    stock, compact = _place(plan_file.split(metadata), parts)
    files = [
        file.described(manifests.parts_name(rank)) for rank, each in enumerate(parts) for file in each.files
    ]
    files.append(RemoteFile(name=METADATA, nbytes=len(stock), digest=xxhash.xxh3_128_hexdigest(stock)))
    if compact:
        files.append(_put_boxes(store, key, compact))
    manifest = Manifest(
        job=job,
        step=step,
        epoch=epoch,
        world_size=world_size,
        saved_at=(clock or SystemClock()).now(),
        nbytes=sum(file.nbytes for file in files),
        files=tuple(files),
    )
    if len(stock) > _LARGE_BYTES:
        store.put_view(object_key(key, METADATA), memoryview(stock), within_s=max(60.0, wait_s))
    else:
        store.put(object_key(key, METADATA), stock)
    failpoint.here("s3.metadata")
    store.put(object_key(key, MANIFEST), manifest.model_dump_json().encode())
    failpoint.here("s3.manifest")
    return RemoteCheckpoint(key=key, **manifest.model_dump(exclude={"format", "files"}))


def require_alike(key: str, parts: Sequence[Parts]) -> None:
    """Refuse parts whose replicated state differs between ranks: together they are the state of no rank.

    Raises:
        CheckpointError: the message names the ranks on which it differs.
    """
    for number, hashes in enumerate(zip_longest(*(each.replicated for each in parts), fillvalue=0)):
        if len(held := {each for each in hashes if each}) > 1:
            ranks = [hashes.index(each) for each in held]
            raise CheckpointError(
                f"checkpoint {key}: tensors that are saved once are not the same on ranks {sorted(ranks)} "
                f"(group {number}): they began to differ at this step. The next plan saves them for each rank"
            )


def read_parts(store: ObjectStore, key: str, rank: int) -> Parts:
    """Read what ``rank`` contributed to the checkpoint with prefix ``key``.

    Raises:
        CheckpointError: it is missing or damaged.
        UnavailableError: the store does not answer.
    """
    where = object_key(key, manifests.parts_name(rank))
    try:
        return Parts.model_validate_json(store.get(where))
    except (UnknownError, ValidationError) as error:
        raise CheckpointError(f"{where}: what rank {rank} uploaded is not known: {error}") from error


def _header_of(buf: mmap.mmap, shard: Path, key: str) -> buffers.ShardHeader:
    header = buffers.parse_header(buf)
    if header is None:
        raise CheckpointError(f"shard {shard}: not complete, nothing to upload")
    if manifests.checkpoint_key(header.job, header.step, header.epoch).rstrip("/") != key.rstrip("/"):
        raise CheckpointError(
            f"shard {shard} is of job {header.job!r} step {header.step} epoch {header.epoch}: no part of {key}"
        )
    return header


def _known(store: ObjectStore, base: str, rank: int) -> dict[str, PartFile]:
    if not base:
        return {}
    try:
        files = read_parts(store, base, rank).files
    except CheckpointError:  # saved by fewer ranks, or by an older version
        return {}
    return {part.name.rpartition("/")[2]: part for part in files}


def _spans(buf: mmap.mmap, header: buffers.ShardHeader, object_nbytes: int) -> Sequence[tuple[int, int]]:
    if header.owned_nbytes < 2 * object_nbytes:
        return [(0, header.owned_nbytes)]
    # torch, which most carriers have from their fork server and the others need for large states only.
    from holdfast.storage.checkpoints.format import pieces  # noqa: PLC0415

    metadata = buf[header.meta_offset : header.meta_offset + header.meta_nbytes]
    return pieces.split(metadata, header.owned_nbytes, object_nbytes)


def _place(plan: PlanFile, parts: Sequence[Parts]) -> tuple[bytes | memoryview, bytes]:
    """Return the metadata, stock and compact, that name the files that there are."""
    planned = all(
        [file.name for file in each.files] == [f"__{rank}_0.distcp"] for rank, each in enumerate(parts)
    )
    if planned and plan.stock:
        return plan.stock, plan.compact
    from holdfast.storage.checkpoints.format import pieces  # noqa: PLC0415  (torch)

    if not plan.compact:
        return pieces.relocate(plan.stock, {rank: each.files for rank, each in enumerate(parts)}), b""
    stock = io.BytesIO()
    compact = pieces.publishable(plan.compact, [each.files for each in parts], stock)
    return stock.getbuffer(), compact


def _put_boxes(store: ObjectStore, key: str, compact: bytes) -> RemoteFile:
    """Have the compact metadata in the store, with the digests of its blocks; its entry in the manifest."""
    part = PartFile(
        name=BOXES,
        start=0,
        nbytes=len(compact),
        digest=xxhash.xxh3_128_hexdigest(compact),
        blocks=digest_blocks(compact),
    )
    store.put(object_key(key, BOXES), compact)
    store.put(object_key(key, BOXES_PART), Parts(files=(part,)).model_dump_json().encode())
    failpoint.here("s3.boxes")
    return part.described(BOXES_PART)


def _await_parts(store: ObjectStore, key: str, world_size: int, wait_s: float, overtaken_in: str) -> None:
    """Wait for all parts; ``overtaken_in``: the job, where a rank that sent a later step's part will not send this."""
    deadline = time.monotonic() + wait_s
    look_at = time.monotonic() + _OVERTAKEN_EVERY_S
    pause, longest = _POLL_S
    wanted = {object_key(key, manifests.parts_name(rank)): rank for rank in range(world_size)}
    while missing := wanted.keys() - {found.key for found in store.list(object_key(key, "parts/"))}:
        now = time.monotonic()
        if overtaken_in and now > look_at:
            look_at = now + _OVERTAKEN_EVERY_S
            rank = min(wanted[each] for each in missing)
            if later := _later_part(store, key, overtaken_in, rank):
                raise CheckpointError(f"checkpoint {key}: rank {rank} left it out, and sent {later} since")
        if now > deadline:
            raise CheckpointError(f"checkpoint {key}: {len(missing)} of {world_size} parts never came")
        time.sleep(pause)
        pause = min(2 * pause, longest)


def _later_part(store: ObjectStore, key: str, job: str, rank: int) -> str:
    """Return the prefix of a later step of the same epoch of which a rank sent its part; empty: there is none."""
    newer = manifests.later_steps(store, job, key)
    return next((each for each in newer if store.exists(object_key(each, manifests.parts_name(rank)))), "")

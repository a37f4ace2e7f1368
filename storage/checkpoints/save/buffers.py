"""Shard files in shared memory: two slots per rank, each with a header page that describes its content.

No torch here: the agent reads, verifies and copies shards without it. A shard file is::

    [header page][.metadata pickle of this file's items][payload]

and the payload is the content of a stock torch.distributed.checkpoint file: first the items that the global
plan gave this rank (``owned_nbytes``: exactly the object ``__{rank}_0.distcp``), then the rank's other items,
so that the rank alone can be restored from its own file.

There are two slots, ``a`` and ``b``. The newest shard that all ranks are known to have is never written to (before
there is one: the newest complete one), so one complete shard remains whenever the writer dies. Where only one
slot is wanted (:func:`only_slot`) the other copies that make this safe lie on other machines.
"""

from __future__ import annotations

import mmap
import os
import re
import stat
import struct
from collections.abc import Iterator
from pathlib import Path

import xxhash
from pydantic import ValidationError

from holdfast import failpoint
from holdfast.errors import CheckpointError
from holdfast.models.base import Frozen
from holdfast.models.names import JobName, Rank

HEADER_BYTES = 4096
MAGIC = b"HFSHARD1"
EMPTY, WRITING, COMPLETE = 0, 1, 2
SLOTS = ("a", "b")

Saved = tuple[int, int]
"""Epoch and step: names one save of a rank."""

# Magic, state, length of the JSON header, xxh3_64 of the JSON header; the JSON follows.
_PREFIX = struct.Struct("<8sQQQ")
_STATE_AT = 8
EMPTY_SLOT = _PREFIX.pack(MAGIC, EMPTY, 0, 0)
"""How a file begins that holds no shard."""
EPOCH_AT = HEADER_BYTES - 8
"""Offset of the epoch whose rank has the file mapped for writing, or had it last: behind the header's text."""
_NAME = re.compile(r"r(\d+)-([ab])\.shard$")


class ShardHeader(Frozen):
    """The header of a shard file. Offsets count bytes from the start of the file."""

    job: JobName
    rank: Rank
    step: int
    epoch: int
    world_size: int
    plan: str
    """Identifies the layout: files of one plan differ in tensor bytes only."""
    meta_offset: int
    meta_nbytes: int
    payload_offset: int
    owned_nbytes: int
    """Leading part of the payload that this rank contributes to the checkpoint in S3."""
    payload_nbytes: int
    file_nbytes: int
    number: int = 0
    """Of the call that saved, counted from the epoch's start on all ranks; 0: saved before there were numbers."""
    keeps: Saved | None = None
    """The newest save that all ranks were known to have when this one began: it must not make way for this one."""
    digest: str = ""
    """xxh3_128 (hex) of the metadata and the payload."""
    replicated: tuple[int, ...] = ()
    """Of tensors that are saved once for several ranks: a hash for each set of such ranks, 0 where this is none of
    them. All that have one have the same, or the shards are no checkpoint together."""

    @property
    def is_laid_out(self) -> bool:
        """Whether metadata and payload lie one behind the other in a file of this size."""
        ends = (self.meta_offset + self.meta_nbytes, self.payload_offset + self.payload_nbytes)
        starts = self.meta_offset >= HEADER_BYTES and ends[0] <= self.payload_offset
        sizes = self.meta_nbytes >= 0 and 0 <= self.owned_nbytes <= self.payload_nbytes
        return starts and sizes and ends[1] <= self.file_nbytes


def shard_path(folder: Path, rank: int, slot: str) -> Path:
    """Path of one slot of ``rank`` in ``folder``."""
    return folder / f"r{rank}-{slot}.shard"


def rank_of(path: Path) -> int:
    """Rank that a shard file belongs to, from its name; -1 when it is no shard's name."""
    match = _NAME.search(path.name)
    return int(match[1]) if match else -1


def metadata_path(folder: Path, epoch: int | str) -> Path:
    """Return where rank 0 puts the global ``.metadata`` of an epoch's checkpoints.

    Exact for a given shard: ``metadata_path(folder, header.plan)`` (an epoch may plan more than once).
    """
    return folder / f"metadata-{epoch}.pickle"


def begin(buf: mmap.mmap) -> None:
    """Declare that the content is about to change: it must not be used until :func:`commit`."""
    _PREFIX.pack_into(buf, 0, MAGIC, WRITING, 0, 0)


def commit(buf: mmap.mmap, header: ShardHeader) -> bytes:
    """Declare the content complete; the state is written last, in one aligned word. Returns how the file begins now."""
    text = header.model_dump_json().encode()
    if _PREFIX.size + len(text) > EPOCH_AT:
        raise CheckpointError(
            f"shard header of job {header.job!r} is {len(text)} bytes: use a shorter job name"
        )
    buf[_PREFIX.size : _PREFIX.size + len(text)] = text
    checksum = xxhash.xxh3_64_intdigest(text)
    _PREFIX.pack_into(buf, 0, MAGIC, WRITING, len(text), checksum)
    failpoint.here("header.text")
    struct.pack_into("<Q", buf, _STATE_AT, COMPLETE)
    failpoint.here("header.complete")
    return _PREFIX.pack(MAGIC, COMPLETE, len(text), checksum)


def parse_header(page: bytes | memoryview | mmap.mmap) -> ShardHeader | None:
    """Return the header in the first page of a shard; None unless it is whole and complete."""
    if len(page) < HEADER_BYTES:
        return None
    magic, state, length, checksum = _PREFIX.unpack_from(page, 0)
    if magic != MAGIC or state != COMPLETE or _PREFIX.size + length > HEADER_BYTES:
        return None
    text = bytes(page[_PREFIX.size : _PREFIX.size + length])
    if xxhash.xxh3_64_intdigest(text) != checksum:
        return None
    try:
        header = ShardHeader.model_validate_json(text)
    except ValidationError:
        return None
    return header if header.is_laid_out else None


class SeenHeader:
    """The header of a file that is mapped, parsed again only when it is another one than was seen or written last."""

    def __init__(self) -> None:
        self._prefix = b""
        self._header: ShardHeader | None = None

    def header(self, buf: mmap.mmap) -> ShardHeader | None:
        """Return the header of the file; None when there is no complete shard."""
        prefix = buf[: _PREFIX.size]  # has the JSON's length and hash
        if prefix != self._prefix:
            self._prefix, self._header = prefix, parse_header(buf)
        return self._header

    def wrote(self, prefix: bytes, header: ShardHeader) -> None:
        """Remember ``header`` and the ``prefix`` that :func:`commit` returned for it."""
        self._prefix, self._header = prefix, header


def read_header(path: Path) -> ShardHeader | None:
    """Return the header of the shard at ``path``; None when there is no complete shard, or no plain file."""
    try:  # without waiting for a writer, if it is a pipe
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        found = os.fstat(descriptor)
        header = parse_header(os.read(descriptor, HEADER_BYTES)) if stat.S_ISREG(found.st_mode) else None
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return header if header is None or header.file_nbytes == found.st_size else None


def digest_of(buf: bytes | memoryview | mmap.mmap, header: ShardHeader) -> str:
    """xxh3_128 (hex) of the metadata and payload bytes that ``header`` describes in ``buf``."""
    digest = xxhash.xxh3_128()
    with memoryview(buf) as view:
        for offset, nbytes in (
            (header.meta_offset, header.meta_nbytes),
            (header.payload_offset, header.payload_nbytes),
        ):
            with view[offset : offset + nbytes] as part:
                digest.update(part)
    return digest.hexdigest()


class StreamDigest:
    """As :func:`digest_of`, of a file's bytes behind the header page that come one piece after the other."""

    def __init__(self, header: ShardHeader) -> None:
        self._digest = xxhash.xxh3_128()
        self._at = HEADER_BYTES
        meta_end = header.meta_offset + header.meta_nbytes
        if header.payload_offset < meta_end:
            raise CheckpointError(
                f"shard header of rank {header.rank}: the payload begins inside the metadata"
            )
        self._ranges = (
            (header.meta_offset, meta_end),
            (header.payload_offset, header.payload_offset + header.payload_nbytes),
        )

    def update(self, piece: memoryview) -> None:
        """Take the next bytes."""
        for start, end in self._ranges:
            first, last = max(start, self._at), min(end, self._at + len(piece))
            if first < last:
                with piece[first - self._at : last - self._at] as part:
                    self._digest.update(part)
        self._at += len(piece)

    def finish(self) -> str:
        """Return the digest, when all bytes came."""
        return self._digest.hexdigest()


def require_header(path: Path) -> ShardHeader:
    """Return the header of the shard at ``path``.

    Raises:
        CheckpointError: it is missing, incomplete or short.
    """
    if (header := read_header(path)) is None:
        raise CheckpointError(
            f"shard of rank {rank_of(path)} at {path}: missing, incomplete or cut short. "
            "Restore this rank from another copy or from S3."
        )
    return header


def verify(path: Path) -> ShardHeader:
    """Read the whole shard at ``path`` and check it against its header.

    Raises:
        CheckpointError: it is missing, incomplete, short, or its bytes are not those that were saved.
    """
    header = require_header(path)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as buf:
        found = digest_of(buf, header)
    if found != header.digest:
        raise CheckpointError(
            f"shard of rank {header.rank} at step {header.step} ({path}): bytes changed after it was saved "
            f"(digest {found}, expected {header.digest})"
        )
    return header


def inventory(folder: Path) -> list[tuple[Path, ShardHeader]]:
    """Return all complete shards in ``folder`` by rank, then oldest first."""
    found = [(path, header) for path in _files(folder) if (header := read_header(path)) is not None]
    return sorted(found, key=lambda item: (item[1].rank, item[1].epoch, item[1].step))


def slot_to_overwrite(folder: Path, rank: int, keeps: Saved | None = None) -> Path:
    """Return the slot of ``rank`` that does not hold what ``keeps`` names; without that not the newest complete one.

    Newest is by epoch, then step.
    """
    a, b = (shard_path(folder, rank, slot) for slot in SLOTS)
    return a if overwrites_first(read_header(a), read_header(b), keeps) else b


def overwrites_first(held_a: ShardHeader | None, held_b: ShardHeader | None, keeps: Saved | None) -> bool:
    """Return whether the next save overwrites the first of the slots that hold these; see :func:`slot_to_overwrite`."""
    for held, first in ((held_a, False), (held_b, True)):
        if held is not None and (held.epoch, held.step) == keeps:
            return first
    if held_a is None or held_b is None:
        return held_a is None
    return (held_a.epoch, held_a.step) <= (held_b.epoch, held_b.step)


def only_slot(folder: Path, rank: int) -> tuple[Path, Path]:
    """Return the slot of ``rank`` where one is enough, and the other, which should not exist."""
    a, b = (shard_path(folder, rank, slot) for slot in SLOTS)
    return (b, a) if b.exists() and not a.exists() else (a, b)


def discard_newer(folder: Path, step: int, rank: int | None = None) -> list[Path]:
    """Mark shards beyond ``step`` empty (of one rank, or of all) and return their paths.

    Called when an epoch resumes after ``step``: a leftover of a later step would count as the newest, and the
    first save of the new epoch would overwrite the shard that all ranks have in common.
    """
    gone = []
    for path, header in inventory(folder):
        if header.step > step and rank in (None, header.rank):
            discard(path)
            gone.append(path)
    return gone


def discard(path: Path) -> None:
    """Mark the shard at ``path`` empty."""
    with path.open("r+b") as file:
        file.write(EMPTY_SLOT)


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in folder.glob("r*-?.shard") if rank_of(path) >= 0)

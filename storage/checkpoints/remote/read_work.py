"""The pieces of one load on one rank: read, verified by the digests of their blocks, and put where items want them."""

from __future__ import annotations

import itertools
import threading
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
import xxhash
from torch import Tensor

from holdfast.errors import CheckpointError, DamagedError, HoldfastError, UnknownError
from holdfast.storage.checkpoints.format.blocks import BlockCheck, Blocks
from holdfast.storage.checkpoints.load.exchange import FAILURES, as_trouble
from holdfast.storage.checkpoints.load.located import FileSpan, Located
from holdfast.storage.checkpoints.remote.manifests import ForeignFile, RemoteFile
from holdfast.storage.checkpoints.remote.read_orders import ReadOrders, block_nbytes

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
ROUNDS_AT_ONCE = 3
"""One is passed on while the next two are read."""


class CheckpointSource(Protocol):
    """Where the bytes come from: one checkpoint."""

    @property
    def name(self) -> str:
        """For errors."""
        ...

    def get_range(self, name: str, start: int, end: int) -> bytes:
        """Return the bytes of a file."""
        ...

    def read_range(
        self, name: str, start: int, end: int, chunk_nbytes: int, take: Callable[[bytes], None]
    ) -> None:
        """Read bytes of a file as they come, ``chunk_nbytes`` at a time."""
        ...

    def read_blocks(self, file: RemoteFile) -> Blocks | None:
        """Return the digests of the blocks of a file."""
        ...


@dataclass(frozen=True)
class Round:
    """The reads of this rank in one round, in progress."""

    pieces: list[tuple[int, int, int]]
    """File, start and end of each."""
    reads: list[Future[None]]
    outgoing: Tensor
    """Bytes that other ranks need of it: those for rank 0, then those for rank 1, and so on."""
    counts: list[int]
    """How many for each."""


class Work:
    """The pieces of one load on this rank: read, verified, and put where items want them.

    Block by block, in the thread that reads: a block is checked, placed and copied for others while the cache of the
    core still has it.
    """

    def __init__(
        self,
        source: CheckpointSource,
        items: list[Located],
        files: list[RemoteFile],
        number: dict[str, int],
        ranks: int,
    ) -> None:
        """Prepare the reads; ``number`` is the index in ``files`` of each name."""
        self._source = source
        self._items = items
        self._files, self._number = files, number
        self._ranks = ranks
        self._spans = _by_block(items, number, files)
        self._checks: dict[int, BlockCheck | None] = {}
        self._locks: defaultdict[int, threading.Lock] = defaultdict(threading.Lock)
        self._buffers: dict[str, Tensor] = {}
        self.read_nbytes = self.received_nbytes = 0

    def submit(self, pool: ThreadPoolExecutor, orders: ReadOrders, turn: int) -> Round:
        """Begin to read this rank's pieces of a round. At most ``ROUNDS_AT_ONCE`` may be in use at any time."""
        found = np.flatnonzero(orders.mine[:, 3] == turn).tolist()
        pieces = [(file, start, end) for file, start, end, _ in orders.mine[found].tolist()]
        counts = [0] * self._ranks
        for index, (_, start, end) in zip(found, pieces, strict=True):
            for other in orders.wanted[index]:
                counts[other] += end - start
        outgoing = self.buffer(f"outgoing {turn % ROUNDS_AT_ONCE}", sum(counts))
        room = outgoing.numpy()
        begins = [0, *itertools.accumulate(counts)]
        reads = []
        for index, (file, start, end) in zip(found, pieces, strict=True):
            copies = []
            for other in orders.wanted[index]:
                copies.append(room[begins[other] : begins[other] + end - start])
                begins[other] += end - start
            reads.append(pool.submit(self._read, file, start, end, copies))
            self.read_nbytes += end - start
        return Round(pieces, reads, outgoing, counts)

    def buffer(self, name: str, nbytes: int) -> Tensor:
        """Memory for a round, used again in later ones: pages that a process has touched cost no more."""
        if (held := self._buffers.get(name)) is None or len(held) < nbytes:
            self._buffers[name] = held = torch.empty(nbytes, dtype=torch.uint8, device="cpu")
        return held[:nbytes]

    def place(self, file: int, start: int, piece: Bytes) -> None:
        """Copy what items need of a verified piece. Again does no harm."""
        end = start + len(piece)
        for _, span in self._wanting(file, start, end):
            low, high = max(start, span.start), min(end, span.end)
            np.frombuffer(span.into, np.uint8)[low - span.start : high - span.start] = piece[
                low - start : high - start
            ]

    def arrived(self, file: int, start: int, end: int) -> None:
        """Note that a piece was placed."""
        for owner, span in self._wanting(file, start, end):
            owner.missing -= min(end, span.end) - max(start, span.start)

    def _wanting(self, file: int, start: int, end: int) -> list[tuple[Located, FileSpan]]:
        size = block_nbytes(self._files[file])
        blocks = range(start // size, -(-end // size))
        found = (each for block in blocks for each in self._spans.get((file, block), ()))
        return list({id(span): (owner, span) for owner, span in found}.values())

    def finish(self, trouble: list[HoldfastError]) -> None:
        """Hand every item to the planner."""
        for item in self._items:
            try:
                if item.missing:
                    raise CheckpointError(f"{item.item} lacks {item.missing} bytes")
                item.finish(partial(self._verified, self._number[item.file]))
            except FAILURES as error:
                trouble.append(as_trouble(error, self._source.name))
                return

    def _verified(self, file: int, start: int, end: int) -> bytes:
        """Read bytes of a file by themselves, in whole blocks that are those that were saved.

        Raises:
            DamagedError: they are not, twice.
        """
        described = self._files[file]
        size = block_nbytes(described)
        low, found = start // size * size, bytearray()
        for at in range(low, min(-(-end // size) * size, described.nbytes), size):
            nbytes = min(size, described.nbytes - at)
            block = self._source.get_range(described.name, at, at + nbytes)
            found += self._again(file, at, nbytes) if self._bad(file, at, block) else block
        return bytes(found[start - low : end - low])

    def _read(self, file: int, start: int, end: int, copies: list[Bytes]) -> None:
        """Read a piece, and put its bytes in place and into ``copies`` when they are those that were saved.

        Raises:
            DamagedError: they are not, twice.
        """
        name, at = self._files[file].name, start

        def take(block: bytes) -> None:
            nonlocal at
            if self._bad(file, at, block):
                block = self._again(file, at, len(block))
            found = np.frombuffer(block, np.uint8)
            self.place(file, at, found)
            for copy in copies:
                copy[at - start : at - start + len(found)] = found
            at += len(block)

        try:
            self._source.read_range(name, start, end, block_nbytes(self._files[file]), take)
        except UnknownError as error:
            raise DamagedError(f"{self._source.name}: {name}: {error}") from error

    def _again(self, file: int, start: int, nbytes: int) -> bytes:
        name, end = self._files[file].name, start + nbytes
        block = self._source.get_range(name, start, end)
        if self._bad(file, start, block):
            raise DamagedError(
                f"{self._source.name}: {name}, bytes {start} to {end}: they are not those that were saved. "
                "Restore an older step."
            )
        return block

    def _bad(self, file: int, start: int, block: bytes) -> bool:
        described = self._files[file]
        if isinstance(described, ForeignFile):
            return False
        with self._locks[file]:
            if file not in self._checks:
                self._checks[file] = self._check(described)
            check = self._checks[file]
        if check is not None:
            return any(check.bad(start, memoryview(block)))
        return xxhash.xxh3_128_hexdigest(block) != described.digest or len(block) != described.nbytes

    def _check(self, file: RemoteFile) -> BlockCheck | None:
        """Return the block digests of a file; None when there are none and the file is read as one block."""
        try:
            blocks = self._source.read_blocks(file)
            return BlockCheck(blocks, file.nbytes) if blocks is not None else None
        except CheckpointError as error:
            raise DamagedError(f"{self._source.name}: {file.name} cannot be verified: {error}") from error


def _by_block(
    items: list[Located], number: dict[str, int], files: list[RemoteFile]
) -> dict[tuple[int, int], list[tuple[Located, FileSpan]]]:
    found: dict[tuple[int, int], list[tuple[Located, FileSpan]]] = defaultdict(list)
    for item in items:
        file = number[item.file]
        size = block_nbytes(files[file])
        for span in item.spans:
            for block in range(span.start // size, -(-span.end // size)):
                found[file, block].append((item, span))
    return found

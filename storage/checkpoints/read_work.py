"""The pieces of one load on one rank: read, verified by the digests of their blocks, and put where items want them."""

from __future__ import annotations

import threading
from collections import defaultdict
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Protocol

import numpy as np
import xxhash

from holdfast.errors import CheckpointError, DamagedError, HoldfastError, UnknownError
from holdfast.storage.checkpoints.blocks import BlockCheck, Blocks
from holdfast.storage.checkpoints.located import Located, Span
from holdfast.storage.checkpoints.read_orders import Orders, block_nbytes
from holdfast.storage.remote import RemoteFile


class Source(Protocol):
    """Where the bytes come from: one checkpoint."""

    @property
    def name(self) -> str:
        """For errors."""
        ...

    def get_range(self, name: str, start: int, end: int) -> bytes:
        """Bytes of a file."""
        ...

    def read_blocks(self, file: RemoteFile) -> Blocks | None:
        """Digests of the blocks of a file."""
        ...


class Work:
    """The pieces of one load on this rank: read, verified, and put where items want them."""

    def __init__(
        self, source: Source, items: list[Located], files: list[RemoteFile], names: list[str]
    ) -> None:
        self._source = source
        self._items = items
        self._files = files
        self._number = {name: index for index, name in enumerate(names)}
        self._spans = _by_block(items, self._number, files)
        self._checks: dict[int, BlockCheck | None] = {}
        self._locks: defaultdict[int, threading.Lock] = defaultdict(threading.Lock)
        self.read_nbytes = self.received_nbytes = 0

    def submit(self, pool: ThreadPoolExecutor, orders: Orders, turn: int) -> dict[int, Future[bytes]]:
        """Begin to read this rank's pieces of a round."""
        found = np.flatnonzero(orders.mine[:, 3] == turn).tolist()
        pieces = {index: orders.mine[index].tolist() for index in found}
        self.read_nbytes += sum(end - start for _, start, end, _ in pieces.values())
        return {
            index: pool.submit(self._read, file, start, end)
            for index, (file, start, end, _) in pieces.items()
        }

    def place(self, file: int, start: int, piece: memoryview) -> None:
        """Copy what items need of a verified piece."""
        end = start + len(piece)
        size = block_nbytes(self._files[file])
        seen: set[int] = set()
        for block in range(start // size, -(-end // size)):
            for owner, span in self._spans.get((file, block), ()):
                if id(span) in seen:
                    continue
                seen.add(id(span))
                low, high = max(start, span.start), min(end, span.end)
                span.into[low - span.start : high - span.start] = piece[low - start : high - start]
                owner.missing -= high - low

    def finish(self, trouble: list[HoldfastError]) -> None:
        """Hand every item to the planner."""
        for item in self._items:
            assert item.missing == 0, f"{item.item} lacks {item.missing} bytes"
            try:
                item.finish(partial(self._source.get_range, item.file))
            except HoldfastError as error:
                trouble.append(error)
                return

    def _read(self, file: int, start: int, end: int) -> bytes:
        """A piece whose bytes are those that were saved.

        Raises:
            DamagedError: they are not, twice.
        """
        name = self._files[file].name
        bad: list[tuple[int, int]] = []
        for _ in range(2):
            try:
                piece = self._source.get_range(name, start, end)
            except UnknownError as error:
                raise DamagedError(f"{self._source.name}: {name}: {error}") from error
            bad = self._bad(file, start, piece)
            if not bad:
                return piece
        raise DamagedError(
            f"{self._source.name}: {name}, bytes {bad[0][0]} to {bad[0][1]}: they are not those that "
            "were saved. Restore an older step."
        )

    def _bad(self, file: int, start: int, piece: bytes) -> list[tuple[int, int]]:
        described = self._files[file]
        with self._locks[file]:
            if file not in self._checks:
                self._checks[file] = self._check(described)
            check = self._checks[file]
        if check is not None:
            return list(check.bad(start, memoryview(piece)))
        fits = xxhash.xxh3_128_hexdigest(piece) == described.digest and len(piece) == described.nbytes
        return [] if fits else [(start, start + len(piece))]

    def _check(self, file: RemoteFile) -> BlockCheck | None:
        """The block digests of a file; None when there are none and the file is read as one block."""
        try:
            blocks = self._source.read_blocks(file)
            return BlockCheck(blocks, file.nbytes) if blocks is not None else None
        except CheckpointError as error:
            raise DamagedError(f"{self._source.name}: {file.name} cannot be verified: {error}") from error


def _by_block(
    items: list[Located], number: dict[str, int], files: list[RemoteFile]
) -> dict[tuple[int, int], list[tuple[Located, Span]]]:
    found: dict[tuple[int, int], list[tuple[Located, Span]]] = defaultdict(list)
    for item in items:
        file = number[item.file]
        size = block_nbytes(files[file])
        for span in item.spans:
            for block in range(span.start // size, -(-span.end // size)):
                found[file, block].append((item, span))
    return found

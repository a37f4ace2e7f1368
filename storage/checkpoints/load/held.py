"""Contents of the ranks' shard files: exchanged among the ranks, and combined into one checkpoint.

A rank's file has a box of a tensor in pieces (rows that the global plan gave to it, and the rest). Here the pieces
are boxes again, so that the boxes of all ranks are either the same or apart.
"""

from __future__ import annotations

import math
import pickle
import zlib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import (
    STORAGE_TYPES,
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)

from holdfast.errors import CheckpointError
from holdfast.storage.checkpoints.format.layout import Placed, read_layout
from holdfast.storage.checkpoints.load.exchange import travels_as
from holdfast.storage.checkpoints.save.buffers import ShardHeader

Box = tuple[tuple[int, ...], tuple[int, ...]]
"""Offsets and sizes."""


@dataclass(frozen=True)
class Saved:
    """Which save a shard is of. All shards that are read together must be of one."""

    job: str
    epoch: int
    step: int
    world_size: int
    plan: str
    number: int
    """Of the call that saved: a step may be saved more than once."""


@travels_as("Entry")
@dataclass(frozen=True)
class HeldEntry:
    """One thing that a rank holds: a whole box of a tensor, or an object."""

    name: str
    size: tuple[int, ...] | None = None
    """Of the whole tensor; None for an object."""
    dtype: torch.dtype | None = None
    box: Box = ((), ())
    slot_nbytes: int = 0
    """Room of an object in the file."""

    def nbytes(self, lengths: Sequence[int]) -> int:
        """Return the size of a part of the box with these lengths, or of the object."""
        return self.slot_nbytes if self.dtype is None else math.prod(lengths) * self.dtype.itemsize


@dataclass(frozen=True)
class Inventory:
    """The list that a rank sends to the others: they request an entry by its place in ``entries``."""

    saved: Saved
    entries: tuple[HeldEntry, ...]
    paths: dict[str, Any]
    """By name, where in the nested state it was (a checkpoint's ``planner_data``)."""


def pack(value: object) -> bytes:
    """Pack for ranks of the same job: names repeat, so the result is small."""
    return zlib.compress(pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL), 1)


def unpack(packed: bytes) -> Any:
    """Return what :func:`pack` was given."""
    return pickle.loads(zlib.decompress(packed))


def take_stock(header: ShardHeader, metadata: Metadata) -> tuple[Inventory, list[list[Placed]]]:
    """Return the contents of a shard file, and for each entry its pieces, in the order of its rows."""
    layout = read_layout(header.plan, metadata, b"", header.owned_nbytes, header.payload_nbytes)
    pieces: defaultdict[HeldEntry, list[Placed]] = defaultdict(list)
    for each in layout.items:
        pieces[_entry(each)].append(each)
    for entry, parts in pieces.items():
        parts.sort(key=lambda each: each.piece.start)
        _require_whole(entry, parts)
    saved = Saved(header.job, header.epoch, header.step, header.world_size, header.plan, header.number)
    return Inventory(saved, tuple(pieces), dict(metadata.planner_data or {})), list(pieces.values())


def combined(stocks: Sequence[Inventory]) -> Inventory:
    """Return the contents of several files of one save as one inventory, entries in the order of the files.

    Raises:
        CheckpointError: they are not of one save.
    """
    paths = {name: path for each in stocks for name, path in each.paths.items()}
    return Inventory(_one_save(stocks), tuple(entry for each in stocks for entry in each.entries), paths)


def _entry(placed: Placed) -> HeldEntry:
    piece = placed.piece
    if piece.size is None or piece.offsets is None or piece.sizes is None:
        return HeldEntry(piece.fqn, slot_nbytes=placed.place.length)
    return HeldEntry(piece.fqn, tuple(piece.size), piece.dtype, (tuple(piece.offsets), tuple(piece.sizes)))


def _require_whole(entry: HeldEntry, parts: Sequence[Placed]) -> None:
    sizes = entry.box[1]
    rows = sum(each.piece.stop - each.piece.start for each in parts)
    if entry.size is not None and sizes and rows != sizes[0]:
        raise CheckpointError(f"{entry.name}: the shard has {rows} of the {sizes[0]} rows of its box")


@dataclass(frozen=True)
class Holders:
    """The ranks that have a box or an object: (rank, place in its inventory)."""

    box: Box
    ranks: list[tuple[int, int]] = field(default_factory=list)


class Stock:
    """The combined contents of all ranks."""

    def __init__(self, inventories: Sequence[Inventory | None]) -> None:
        """Combine the inventories that the ranks reported, in order; None from one that has no shard.

        Raises:
            CheckpointError: they are not of one save, or of no save.
        """
        self._inventories = inventories
        self._kinds: dict[str, HeldEntry] = {}
        self.saved = _one_save(inventories)
        found: defaultdict[str, dict[Box, Holders]] = defaultdict(dict)
        for rank, inventory in enumerate(inventories):
            for place, entry in enumerate(inventory.entries if inventory else ()):
                _require_same(self._kinds.setdefault(entry.name, entry), entry)
                boxes = found[entry.name]
                if entry.box not in boxes:
                    boxes[entry.box] = Holders(entry.box)
                boxes[entry.box].ranks.append((rank, place))
        self._holders = {name: list(boxes.values()) for name, boxes in found.items()}

    def metadata(self) -> Metadata:
        """Return the metadata, as of one checkpoint."""
        paths: dict[str, Any] = {}
        for inventory in self._inventories:
            paths |= inventory.paths if inventory else {}
        known: dict[str, STORAGE_TYPES] = {}
        for name, entry in self._kinds.items():
            if entry.size is None or entry.dtype is None:
                known[name] = BytesStorageMetadata()
                continue
            chunks = [
                ChunkStorageMetadata(torch.Size(each.box[0]), torch.Size(each.box[1]))
                for each in self._holders[name]
            ]
            known[name] = TensorStorageMetadata(TensorProperties(entry.dtype), torch.Size(entry.size), chunks)
        return Metadata(known, paths)

    def source(self, index: MetadataIndex, rank: int) -> tuple[int, int]:
        """Return the source of a box or object for ``rank``: itself, if it has it; else its holders in turn."""
        number = index.index or 0
        held = self._holders[index.fqn][number].ranks
        if (mine := next((each for each in held if each[0] == rank), None)) is not None:
            return mine
        kind = self._kinds[index.fqn]
        return held[0] if kind.size is None else held[(rank + number) % len(held)]

    def nbytes(self, source: tuple[int, int], lengths: Sequence[int]) -> int:
        """Return the size of a part of a box, or of an object, of that source."""
        inventory = self._inventories[source[0]]
        assert inventory is not None
        return inventory.entries[source[1]].nbytes(lengths)

    def dtype(self, name: str) -> torch.dtype:
        """Return the type of a tensor, as it was saved."""
        dtype = self._kinds[name].dtype
        assert dtype is not None
        return dtype


def _one_save(inventories: Sequence[Inventory | None]) -> Saved:
    held = {rank: each.saved for rank, each in enumerate(inventories) if each is not None}
    if not held:
        raise CheckpointError("no rank has a shard of the step to be restored")
    first_rank, first = next(iter(held.items()))
    for rank, saved in held.items():
        if saved != first:
            raise CheckpointError(
                f"the shards are not of one save: rank {first_rank} has {first}, rank {rank} has {saved}"
            )
    return first


def _require_same(first: HeldEntry, entry: HeldEntry) -> None:
    if entry.size != first.size:
        raise CheckpointError(
            f"{entry.name}: ranks saved it with different sizes, {_size(first)} and {_size(entry)}"
        )
    if entry.dtype != first.dtype:
        raise CheckpointError(
            f"{entry.name}: ranks saved it with different types, {first.dtype} and {entry.dtype}"
        )


def _size(entry: HeldEntry) -> str:
    return "an object" if entry.size is None else str(list(entry.size))

"""The description of its state that each rank sends when a plan is made: compact, since rank 0 receives 10,000 of them.

Names, types and global sizes are the same on many ranks (all data-parallel replicas, all ranks of a pipeline
stage): they form the *outline*, which only the first rank that has it sends. The boxes differ: arrays.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import xxhash
from torch.distributed.checkpoint.metadata import TensorProperties
from torch.distributed.checkpoint.planner import WriteItem

from holdfast.storage.checkpoints.format.layout import Piece, dump_object, slot_nbytes
from holdfast.storage.checkpoints.format.sharing import Ints
from holdfast.storage.checkpoints.load.exchange import travels_as


@travels_as("Kind")
@dataclass(frozen=True)
class ItemKind:
    """The kind of an item, apart from which part of it a rank holds."""

    fqn: str
    size: torch.Size | None = None
    """Size of the whole tensor; None for an object."""
    properties: TensorProperties | None = None


@dataclass(frozen=True)
class Outline:
    """The kinds of a rank's items, one per item, and how their flat names were made of nested ones."""

    kinds: tuple[ItemKind, ...]
    planner_data: dict[str, Any]

    def digest(self) -> str:
        """Equal for equal outlines, in any process."""
        parts = [(each.fqn, each.size, each.properties and each.properties.dtype) for each in self.kinds]
        return hashlib.blake2b(
            repr((parts, sorted(self.planner_data.items()))).encode(), digest_size=16
        ).hexdigest()


@dataclass(frozen=True)
class Description:
    """One rank's items: those of the shared outline, then those that only this rank has."""

    machine: str
    digest: str
    """Of the shared outline."""
    private: Outline
    boxes: Ints
    """[N, 2, D] offsets and sizes; unused dimensions are 0 and 1."""
    row_nbytes: Ints
    """[N] bytes of a row along the first dimension; room for an object."""
    contents: Ints
    """[N] hash of an object; 0 for a tensor."""


@dataclass(frozen=True)
class HeldItems:
    """The items that a rank holds, for its own use."""

    shared: Outline
    description: Description
    items: tuple[WriteItem, ...]

    def piece(self, number: int, start: int, stop: int) -> Piece:
        """Return the rows ``start`` to ``stop`` of an item."""
        item, slot = self.items[number], int(self.description.row_nbytes[number])
        if item.tensor_data is None:
            return Piece(item.index.fqn, None, None, None, None, slot_nbytes=slot)
        data = item.tensor_data
        return Piece(
            item.index.fqn, data.size, data.properties, data.chunk.offsets, data.chunk.sizes, start, stop
        )

    def rows(self, number: int) -> int:
        """Return the number of rows of an item."""
        return int(self.description.boxes[number, 1, 0])

    def rest(self, number: int, owned: Sequence[tuple[int, int]]) -> Iterator[Piece]:
        """Yield the parts of an item that are not among the ``owned`` rows (ascending)."""
        at = 0
        for start, stop in owned:
            if start > at:
                yield self.piece(number, at, start)
            at = stop
        if at < self.rows(number) or not owned:  # also a box without rows is part of the state
            yield self.piece(number, at, self.rows(number))


def describe(
    items: Sequence[WriteItem],
    flat: Mapping[str, Any],
    planner_data: Mapping[str, Any],
    machine: str,
    private: tuple[str, ...],
) -> HeldItems:
    """Describe one rank's ``items``.

    Args:
        items: what it would write.
        flat: the state by full name.
        planner_data: how flat names were made of nested ones.
        machine: where the rank runs.
        private: names that begin so exist on this rank alone.
    """
    ordered = sorted(items, key=lambda item: _is_private(item.index.fqn, private))
    kinds = [_kind(item) for item in ordered]
    shared = tuple(kind for kind in kinds if not _is_private(kind.fqn, private))
    paths = [
        {name: path for name, path in planner_data.items() if _is_private(name, private) is mine}
        for mine in (False, True)
    ]
    outline = Outline(shared, paths[0])
    dumped = [b"" if each.tensor_data else dump_object(flat[each.index.fqn]) for each in ordered]
    return HeldItems(
        shared=outline,
        description=Description(
            machine=machine,
            digest=outline.digest(),
            private=Outline(tuple(kinds[len(shared) :]), paths[1]),
            boxes=_boxes(ordered),
            row_nbytes=np.array(
                [_row_nbytes(item, data) for item, data in zip(ordered, dumped, strict=True)], np.int64
            ),
            contents=np.array(
                [xxhash.xxh3_64_intdigest(data) >> 1 if data else 0 for data in dumped], np.int64
            ),
        ),
        items=tuple(ordered),
    )


def _is_private(name: str, private: tuple[str, ...]) -> bool:
    return any(name == each or name.startswith(f"{each}.") for each in private)


def _kind(item: WriteItem) -> ItemKind:
    if item.tensor_data is None:
        return ItemKind(item.index.fqn)
    return ItemKind(item.index.fqn, item.tensor_data.size, item.tensor_data.properties)


def _boxes(items: Sequence[WriteItem]) -> Ints:
    chunks = [item.tensor_data.chunk if item.tensor_data else None for item in items]
    boxes = np.zeros((len(items), 2, max([1, *(len(each.sizes) for each in chunks if each)])), np.int64)
    boxes[:, 1] = 1
    for row, chunk in zip(boxes, chunks, strict=True):
        if chunk:
            row[0, : len(chunk.offsets)], row[1, : len(chunk.sizes)] = chunk.offsets, chunk.sizes
    return boxes


def _row_nbytes(item: WriteItem, data: bytes) -> int:
    if item.tensor_data is None:
        return slot_nbytes(len(data))
    return int(np.prod(item.tensor_data.chunk.sizes[1:])) * item.tensor_data.properties.dtype.itemsize

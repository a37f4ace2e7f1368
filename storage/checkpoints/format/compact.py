"""Checkpoint metadata that a rank reads in part: the names at once, the boxes only of the state that it loads.

To planners and readers it is an ordinary ``Metadata``: a caller that asks for the boxes of a tensor gets all of them.
Our planner declares which state is to be loaded before it asks, and gets the boxes that overlap it
(:meth:`CompactMetadata.narrow`).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    STORAGE_TYPES,
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner_helpers import _create_chunk_list
from torch.distributed.tensor import DTensor

from holdfast.errors import DamagedError, UncoveredError
from holdfast.storage.checkpoints.format.boxes import Boxes, Rows
from holdfast.storage.checkpoints.format.columns import Ints
from holdfast.storage.checkpoints.format.name_table import Names

_log = logging.getLogger(__name__)

Fetch = Callable[[Sequence[tuple[int, int]]], list[bytes | memoryview]]
"""The bytes of ranges (start, end) of the compact file."""


Open = Callable[[str], None]
"""Fills in all boxes of a name."""


class OpenedTensor(TensorStorageMetadata):
    """A tensor whose boxes are read on first access."""

    def __init__(self, name: str, properties: TensorProperties, size: torch.Size, opened: Open) -> None:
        self._name, self._opened = name, opened
        self._chunks: list[ChunkStorageMetadata] | None = None
        self.properties, self.size = properties, size

    @property
    def chunks(self) -> list[ChunkStorageMetadata]:  # type: ignore[override]
        """Its boxes: all of them, or those that were asked for."""
        if self._chunks is None:
            self._opened(self._name)
        assert self._chunks is not None
        return self._chunks

    def fill(self, chunks: list[ChunkStorageMetadata]) -> None:
        """Take the boxes."""
        self._chunks = chunks


class Listed(Mapping[str, STORAGE_TYPES]):
    """The content of a checkpoint, by name."""

    def __init__(self, names: Names, opened: Open) -> None:
        self._names, self._opened = names, opened
        self._made: dict[str, STORAGE_TYPES] = {}

    def __getitem__(self, name: str) -> STORAGE_TYPES:
        if (made := self._made.get(name)) is not None:
            return made
        if (found := self._names.find(name)) is None:
            raise KeyError(name)
        entry = self._names.entries[found[0]]
        if entry.size is None or entry.properties is None:
            made = BytesStorageMetadata()
        else:
            made = OpenedTensor(name, entry.properties, entry.size, self._opened)
        return self._made.setdefault(name, made)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self._names.find(name) is not None

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


class BoxPlaces(Mapping[MetadataIndex, _StorageInfo]):
    """The place of each box; those of a name are read when one of them is requested."""

    def __init__(self, names: Names, opened: Open) -> None:
        self._names, self._opened = names, opened
        self.known: dict[MetadataIndex, _StorageInfo] = {}

    def __getitem__(self, index: MetadataIndex) -> _StorageInfo:
        if index not in self.known and self._names.find(index.fqn) is not None:
            self._opened(index.fqn)
        return self.known[index]

    def __iter__(self) -> Iterator[MetadataIndex]:
        for name in self._names:
            self._opened(name)
        yield from self.known

    def __len__(self) -> int:
        return sum(1 for _ in self)


class Paths(Mapping[str, Any]):
    """Where in the nested state each name is."""

    def __init__(self, names: Names, others: Mapping[str, Any]) -> None:
        self._names, self._others = names, others

    def __getitem__(self, name: str) -> Any:
        found = self._names.find(name)
        path = self._names.entries[found[0]].path_of(found[1]) if found else None
        return self._others[name] if path is None else path

    def __iter__(self) -> Iterator[str]:
        for entry in self._names.entries:
            if entry.path is not None:
                yield from (entry.name(member) for member in entry.members)
        yield from self._others

    def __len__(self) -> int:
        return sum(1 for _ in self)


@dataclass(frozen=True)
class _Need:
    """The part of one name that is to be loaded."""

    name: str
    member: int
    """Its number in its entry."""
    boxes: Ints
    """[K, 2, dims] what of the tensor."""
    blocks: Ints
    """Where that may be described."""
    every: bool = False
    """Whether all saved boxes are wanted, whatever they make up."""


class CompactMetadata(Metadata):
    """Filled in by :meth:`narrow`, as far as a state needs it."""

    def __init__(
        self, boxes: Boxes, files: Sequence[str], fetch: Fetch, stock: Callable[[], Metadata]
    ) -> None:
        """Of the file's head.

        Args:
            boxes: the head.
            files: the names that its numbers of files stand for.
            fetch: reads the rest.
            stock: the stock metadata, for when the rest is damaged.
        """
        names = Names(boxes.entries)
        self._places = BoxPlaces(names, self._open)
        super().__init__(
            Listed(names, self._open),  # type: ignore[arg-type]
            Paths(names, boxes.others),
            self._places,
        )
        self._names, self._boxes, self._files = names, boxes, files
        self._fetch, self._stock = fetch, stock

    def narrow(self, state: Mapping[str, Any]) -> None:
        """Fill in the boxes that meet what is to be loaded; what an earlier call filled in stays.

        Args:
            state: by full name; names that the checkpoint lacks are passed over.

        Raises:
            UncoveredError: the boxes that there are do not make up a tensor of the state.
            DamagedError: the compact metadata is damaged, and the stock one, too.
            UnavailableError: it cannot be read.
        """
        try:
            self._narrow(state)
        except DamagedError as error:
            self._take_stock(state, error)

    def _take_stock(self, wanted: Iterable[str], error: DamagedError) -> None:
        _log.warning("the stock metadata is read instead: %s", error)
        stock = self._stock()
        for name in wanted:
            known, from_stock = self.state_dict_metadata.get(name), stock.state_dict_metadata.get(name)
            if isinstance(known, OpenedTensor) and isinstance(from_stock, TensorStorageMetadata):
                known.fill(from_stock.chunks)
        self._places.known = dict(stock.storage_data)

    def _narrow(self, state: Mapping[str, Any]) -> None:
        self._take([each for name, target in state.items() if (each := self._need(name, target))])

    def _open(self, name: str) -> None:
        """Fill in all boxes of a name."""
        entry, member = self._names.find(name) or (0, 0)
        size = self._names.entries[entry].size
        whole = (
            np.zeros((0, 2, 0), np.int64)
            if size is None
            else np.array([[[0] * len(size), list(size)]], np.int64)
        )
        blocks = np.arange(self._boxes.begins[entry], self._boxes.begins[entry + 1])
        try:
            self._take([_Need(name, member, whole, blocks, every=True)])
        except DamagedError as error:
            self._take_stock([name], error)

    def _take(self, needed: Sequence[_Need]) -> None:
        wanted = sorted({block for need in needed for block in need.blocks.tolist()})
        spans = [self._boxes.span(block) for block in wanted]
        bodies = dict(zip(wanted, self._fetch(spans), strict=True))
        for need in needed:
            rows = [self._boxes.rows(block, bodies[block]) for block in need.blocks.tolist()]
            self._fill(need, [_of(each, need.member) for each in rows])

    def _need(self, name: str, target: object) -> _Need | None:
        if (found := self._names.find(name)) is None:
            return None
        entry, member = found
        local = np.zeros((0, 2, 0), np.int64)
        if (size := self._names.entries[entry].size) is not None:
            if not isinstance(target, Tensor) or target.size() != size:
                return None  # the planner's error message is better
            if isinstance(target, DTensor) and target.device_mesh.get_coordinate() is None:
                return None  # it lies on other ranks
            held = [(box.offsets, box.sizes) for box in _create_chunk_list(target)]
            local = np.array(held, np.int64).reshape(len(held), 2, len(size))
        return _Need(name, member, local, self._boxes.blocks(entry, member, local))

    def _fill(self, need: _Need, blocks: Sequence[Rows]) -> None:
        known = self.state_dict_metadata[need.name]
        if not isinstance(known, OpenedTensor):
            for rows in blocks:
                for row in range(len(rows.member)):
                    self._places.known[MetadataIndex(need.name)] = self._place(rows, row)
            return
        covered, chunks = 0, []
        for rows in blocks:
            meets = _elements(rows, need.boxes)
            covered += int(meets.sum())
            chosen = np.arange(len(rows.member)) if need.every else np.flatnonzero(meets.any(axis=0))
            for row in chosen.tolist():
                offsets = torch.Size(rows.offsets[row].tolist())
                chunks.append(ChunkStorageMetadata(offsets, torch.Size(rows.sizes[row].tolist())))
                self._places.known[MetadataIndex(need.name, offsets)] = self._place(rows, row)
        needed = sum(math.prod(sizes) for _, sizes in need.boxes.tolist())
        if covered < needed and not need.every:
            raise UncoveredError(
                f"{self._boxes.where}: {need.name}: {needed - covered} of the {needed} elements that this rank needs "
                "are in none of its boxes. Restore an older checkpoint.",
                need.name,
                needed - covered,
                needed,
            )
        known.fill(chunks)

    def _place(self, rows: Rows, row: int) -> _StorageInfo:
        return _StorageInfo(self._files[int(rows.file[row])], int(rows.at[row]), int(rows.nbytes[row]))


def _of(rows: Rows, member: int) -> Rows:
    """Return the rows of one name."""
    mine = np.flatnonzero(rows.member == member)
    if len(mine) == len(rows.member):
        return rows
    columns = (rows.member, rows.offsets, rows.sizes, rows.file, rows.at, rows.nbytes)
    return Rows(*(column[mine] for column in columns))


def _elements(rows: Rows, local: Ints) -> Ints:
    """Return [K, M]: how many elements each local box has in common with each saved one."""
    counts = np.empty((len(local), len(rows.member)), np.int64)
    for number, (offsets, sizes) in enumerate(local):
        low = np.maximum(rows.offsets, offsets)
        high = np.minimum(rows.offsets + rows.sizes, offsets + sizes)
        counts[number] = np.maximum(0, high - low).prod(axis=1)
    return counts

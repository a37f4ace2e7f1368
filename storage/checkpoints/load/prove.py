"""Proves that a shard file restores, without the script that saved it: the rehearsal of a recovery.

The file is loaded into an empty copy of all that it holds, by the same reader and planner as in a restore, and the
loaded values are compared item by item with the bytes of the file: tensors as stock torch finds them in their items,
objects as they are written again. A file whose digest is right can still fail to load: an object that is not trusted,
an item that lies elsewhere than its description states, rows that lie nowhere.

A class that only the user's script knows cannot be loaded here. It is reported as not tested, by its path; unless the
script is known not to have allowed it: then its own restore would fail as well.
"""

from __future__ import annotations

import io
import mmap
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import xxhash
from torch import Tensor
from torch.distributed.checkpoint.metadata import (
    STORAGE_TYPES,
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorStorageMetadata,
)

from holdfast.errors import CheckpointError
from holdfast.models.rehearsal import Proof
from holdfast.storage.checkpoints.format.alike import alike
from holdfast.storage.checkpoints.format.item_bytes import bytes_of, stored
from holdfast.storage.checkpoints.format.layout import Place, dump_object
from holdfast.storage.checkpoints.format.overlaps import inside
from holdfast.storage.checkpoints.load.empty_copy import GROUP_BYTES, EmptyBoxes, LoadedBox, groups
from holdfast.storage.checkpoints.load.findings import Findings, first_line
from holdfast.storage.checkpoints.load.load_part import load_part
from holdfast.storage.checkpoints.load.prove_tree import is_tree, prove_tree
from holdfast.storage.checkpoints.load.reader import ShardReader
from holdfast.storage.checkpoints.load.safe_load import load_object
from holdfast.storage.checkpoints.save import buffers

_OBJECTS_AT_ONCE = 512


def prove(path: Path, allowed: Collection[str] | None = None, *, group_bytes: int = GROUP_BYTES) -> Proof:
    """Load the shard file at ``path`` into an empty copy and compare; never raises for what is wrong with the file.

    Args:
        path: of the file; nothing may write to it meanwhile.
        allowed: names of the classes that the script allows in checkpoints (``module.name``); None: not known.
        group_bytes: loaded at a time; about the memory that this takes.
    """
    began = time.perf_counter()

    found = Findings(allowed)
    try:
        reader = ShardReader(path)
        metadata = reader.read_metadata()
        with path.open("rb") as file:
            content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        if buffers.parse_header(content) != reader.header:
            raise CheckpointError(f"shard {path}: it was written to while it was read")
    except (CheckpointError, OSError, ValueError) as error:
        found.wrong("", error)
        return found.proof(seconds=time.perf_counter() - began)
    with content, memoryview(content) as view:
        payload = view[reader.header.payload_offset :][: reader.header.payload_nbytes]
        with payload:
            items = _Shard(reader, metadata, payload, found).prove(group_bytes)
    seconds = time.perf_counter() - began
    return found.proof(items=items, nbytes=reader.header.file_nbytes, seconds=seconds)


@dataclass(frozen=True)
class _Rows:
    """An item: some rows of a box."""

    start: int
    stop: int
    index: MetadataIndex
    chunk: ChunkStorageMetadata


class _Shard:
    """One file under proof."""

    def __init__(self, reader: ShardReader, metadata: Metadata, payload: memoryview, found: Findings) -> None:
        self._reader = reader
        self._metadata = metadata
        self._payload = payload
        self._found = found
        self._places: Mapping[MetadataIndex, Place] = metadata.storage_data or {}
        self._rows: defaultdict[tuple[object, ...], list[_Rows]] = defaultdict(list)

    def prove(self, group_bytes: int) -> int:
        """Check everything; return the number of items that were loaded."""
        described = self._metadata.state_dict_metadata
        self._all_described()
        lying = self._wrongly_placed()
        boxes = [
            box
            for name, known in described.items()
            if isinstance(known, TensorStorageMetadata) and name not in lying
            for box in self._boxes(name, known)
        ]
        for group in groups(boxes, group_bytes):
            self._prove_tensors(group)
        objects = [
            name
            for name, known in described.items()
            if isinstance(known, BytesStorageMetadata) and name not in lying
        ]
        for some in _batches(objects):
            self._prove_objects(some)
        return len({box.fqn for box in boxes}) + len(objects)

    # The file's own description

    def _all_described(self) -> None:
        for index in self._places:
            if index.fqn not in self._metadata.state_dict_metadata:
                self._found.wrong(
                    index.fqn, "its bytes are in the file, and its metadata does not describe it"
                )

    def _wrongly_placed(self) -> set[str]:
        """Return the names of items that have no bytes in the file, or not those of an item of their size."""
        lying: set[str] = set()
        ends: list[tuple[int, int, str]] = []
        for name, known in self._metadata.state_dict_metadata.items():
            for index, nbytes in _expected(name, known):
                place = self._places.get(index)
                if why := _why_not(place, nbytes, len(self._payload)):
                    self._found.wrong(name, f"{_which(index)}{why}")
                    lying.add(name)
                elif place is not None:
                    ends.append((place.offset, place.offset + place.length, name))
        ends.sort()
        for (_, end, before), (start, _, name) in pairwise(ends):
            if start < end:
                self._found.wrong(name, f"its bytes begin inside those of {before}")
                lying.add(name)
        return lying

    def _boxes(self, name: str, known: TensorStorageMetadata) -> list[LoadedBox]:
        """Return the boxes of the tensor that the rank holds; none when their items do not make them up."""
        rows: defaultdict[tuple[int, int, tuple[int, ...], tuple[int, ...]], list[tuple[int, int]]]
        rows = defaultdict(list)
        for chunk in known.chunks:
            index = MetadataIndex(name, chunk.offsets)
            place, offsets, sizes = self._places[index], tuple(chunk.offsets), tuple(chunk.sizes)
            if not inside(chunk.offsets, chunk.sizes, known.size):
                self._found.wrong(name, f"{_which(index)}{list(sizes)}: outside of {list(known.size)}")
                return []
            first, high = (offsets[0], sizes[0]) if sizes else (0, 1)
            rows[first - place.row, place.rows, offsets[1:], sizes[1:]].append((place.row, place.row + high))
            self._rows[name, offsets[1:], sizes[1:]].append(_Rows(first, first + high, index, chunk))
        boxes = []
        for (first, high, offsets, sizes), parts in rows.items():
            if gap := _gap(sorted(parts), high):
                where = [first, *offsets]
                self._found.wrong(name, f"rows {gap[0]} to {gap[1]} of its box at {where} lie in no item")
                return []
            shape = (high, *sizes) if known.size else ()
            boxes.append(
                LoadedBox(name, (first, *offsets) if known.size else (), shape, known.properties.dtype)
            )
        return boxes

    # Loading it

    def _prove_tensors(self, boxes: Iterable[LoadedBox]) -> None:
        by_name: defaultdict[str, list[LoadedBox]] = defaultdict(list)
        for box in boxes:
            by_name[box.fqn].append(box)
        try:
            loaded = load_part(
                self._reader,
                self._metadata,
                {name: self._empty(name, some) for name, some in by_name.items()},
            )
        except Exception as error:  # the first that fails hides the others
            if len(by_name) == 1:
                self._found.wrong(next(iter(by_name)), error)
                return
            for some in by_name.values():
                self._prove_tensors(some)
            return
        for name, some in by_name.items():
            self._compare(name, some, loaded[name])

    def _empty(self, name: str, boxes: Iterable[LoadedBox]) -> EmptyBoxes:
        known = self._metadata.state_dict_metadata[name]
        assert isinstance(known, TensorStorageMetadata)
        return EmptyBoxes(known, boxes)

    def _compare(self, name: str, boxes: Iterable[LoadedBox], loaded: EmptyBoxes) -> None:
        """Compare what was loaded with the bytes of the items, as stock torch finds them there."""
        for box in boxes:
            part = loaded.parts[box.offsets]
            start = box.offsets[0] if box.offsets else 0
            stop = start + (box.sizes[0] if box.sizes else 1)
            for rows in self._rows[name, box.offsets[1:], box.sizes[1:]]:
                low, high = max(start, rows.start), min(stop, rows.stop)
                if low < high and (why := self._differs(part, start, low, high, rows)):
                    self._found.wrong(name, f"{_which(rows.index)}{why}")
                    return

    def _differs(self, part: Tensor, start: int, low: int, high: int, rows: _Rows) -> str:
        """Return how rows ``low`` to ``high`` of ``part`` (it begins at ``start``) differ from the item; else empty."""
        try:
            saved = stored(self._payload, self._places[rows.index], rows.chunk.sizes, part.dtype)
        except Exception as error:  # torch reports an unreadable item by many exception types
            return f"stock torch cannot read its item: {first_line(error)}"
        row = len(saved) // (rows.stop - rows.start)
        mine = part[low - start : high - start] if part.dim() else part
        with saved, saved[(low - rows.start) * row : (high - rows.start) * row] as theirs:
            if xxhash.xxh3_128_digest(theirs) != xxhash.xxh3_128_digest(bytes_of(mine)):
                return "what a restore loads is not what its item holds"
        return ""

    def _prove_objects(self, names: Iterable[str]) -> None:
        names = tuple(names)
        try:
            loaded = load_part(self._reader, self._metadata, dict.fromkeys(names))
        except Exception as error:  # the first that fails hides the others
            if len(names) == 1:
                self._found.of_object(names[0], error)
                return
            for name in names:
                self._prove_objects([name])
            return
        for name in names:
            self._compare_object(name, loaded[name])
            if is_tree(name):
                prove_tree(name, loaded[name], self._metadata.state_dict_metadata, self._found)

    def _compare_object(self, name: str, value: object) -> None:
        """Compare the loaded object, written again, with the file's bytes; if these differ, it must mean the same."""
        place = self._places[MetadataIndex(name)]
        lies = bytes(self._payload[place.offset : place.offset + place.length])
        try:
            again = dump_object(value)
            if lies == again.ljust(place.length, b"\0"):
                return
            reloaded = load_object(io.BytesIO(again), name)
        except Exception as error:  # a class's own methods run here
            self._found.wrong(name, f"what was loaded cannot be saved again: {first_line(error)}")
            return
        if not alike(value, reloaded):
            self._found.wrong(name, "what was loaded is another value when it is saved and loaded again")


def _batches(names: Sequence[str]) -> Iterator[Sequence[str]]:
    return (names[at : at + _OBJECTS_AT_ONCE] for at in range(0, len(names), _OBJECTS_AT_ONCE))


def _expected(name: str, known: STORAGE_TYPES) -> Iterator[tuple[MetadataIndex, int | None]]:
    """Yield the items that must lie in the file, and the bytes of a tensor's data in each."""
    if not isinstance(known, TensorStorageMetadata):
        yield MetadataIndex(name), None
        return
    for chunk in known.chunks:
        yield MetadataIndex(name, chunk.offsets), chunk.sizes.numel() * known.properties.dtype.itemsize


def _why_not(place: Place | None, nbytes: int | None, payload_nbytes: int) -> str:
    """Return why an item cannot lie where the metadata places it; empty: it can."""
    if place is None:
        return "missing: the file has no bytes of it"
    if not 0 <= place.offset <= place.offset + place.length <= payload_nbytes:
        return (
            f"bytes {place.offset} to {place.offset + place.length} of {payload_nbytes}: outside of the file"
        )
    if nbytes is None:
        return ""
    if place.data_nbytes != nbytes:
        return f"{place.data_nbytes} bytes of data, expected {nbytes} by its shape and type"
    data_at = -1 if place.data_at is None else place.data_at
    if not place.offset <= data_at <= data_at + nbytes <= place.offset + place.length:
        return f"its data at {data_at} lies outside of its item"
    return ""


def _gap(parts: Iterable[tuple[int, int]], stop: int) -> tuple[int, int] | None:
    """Return the first rows up to ``stop`` that are in none of the ``parts`` (ascending)."""
    at = 0
    for start, end in parts:
        if start > at:
            return at, start
        at = max(at, end)
    return (at, stop) if at < stop else None


def _which(index: MetadataIndex) -> str:
    return f"at {list(index.offset)}: " if index.offset else ""

"""Compact metadata of a checkpoint: the content of ``.metadata`` for each box, in columns, readable in part.

``.metadata`` has an object per box and another per place: at 10,240 ranks x 500 sharded tensors 962 MiB, of which a
rank needs 500 boxes. ``boxes.bin`` lies beside it::

    magic, version, sizes, digest of the head
    head: names (JSON), and a directory: of every block the entry, the rows, the bytes, what box holds its boxes
    blocks: of up to ``BLOCK_ROWS`` rows of one entry the columns (more rows where they follow a rule)

Rows are in order of entry, number within the entry, and offsets. Blocks of different tensors that lie at the same part
of the tensor are neighbours in the file: what a rank needs of all tensors is one range.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import xxhash

from holdfast.errors import CheckpointError, DamagedError
from holdfast.storage.checkpoints.format import columns, name_table
from holdfast.storage.checkpoints.format.columns import Ints
from holdfast.storage.checkpoints.format.describe import ItemKind
from holdfast.storage.checkpoints.format.metadata_pickle import Table
from holdfast.storage.checkpoints.format.name_table import Entry, Names

VERSION = 1
BLOCK_ROWS = 1024
_WHOLE_BYTES = 32 << 10
"""An entry whose columns take no more is one block, however many rows it has."""

_PREFIX = struct.Struct(
    "<8sIIQQQQQ"
)  # magic, version, dims, files, blocks, bytes of the names, of the directory, digest
_MAGIC = b"HFBOXES\n"
PREFIX_BYTES = _PREFIX.size
_FIELDS = (
    6  # entry, rows, at, bytes, least and greatest number in the entry; then least offsets and greatest ends
)


def pack(table: Table, save_id: str) -> bytes:
    """Return the compact form of ``table``.

    Raises:
        CheckpointError: a name's place in the nested state cannot be written.
    """
    entries, where = name_table.gather(table.kinds, table.planner_data)
    known = {kind.fqn for kind in table.kinds}
    rows = _Rows(table, entries, np.array(where, np.int64).reshape(-1, 2))
    blocks = [block for number in range(len(entries)) for block in rows.blocks(number)]
    head = name_table.written(entries) | {
        "save_id": save_id,
        "others": {
            name: name_table.checked(name, path)
            for name, path in table.planner_data.items()
            if name not in known
        },
    }
    names = zlib.compress(json.dumps(head, separators=(",", ":")).encode(), 6)
    order = sorted(range(len(blocks)), key=lambda each: (blocks[each].part, each))
    at = 0
    for each in order:
        blocks[each].fields[2] = at
        at += len(blocks[each].body)
    directory = np.array([block.fields for block in blocks], "<i8").reshape(len(blocks), -1)
    listed = zlib.compress(np.ascontiguousarray(directory.T).tobytes(), 6)
    prefix = _PREFIX.pack(
        _MAGIC,
        VERSION,
        rows.dims,
        len(table.files),
        len(blocks),
        len(names),
        len(listed),
        xxhash.xxh3_64_intdigest(names + listed),
    )
    return b"".join([prefix, names, listed, *(blocks[each].body for each in order)])


def is_compact(data: bytes | memoryview) -> bool:
    """Return whether ``data`` begins as a compact form does."""
    return bytes(data[: len(_MAGIC)]) == _MAGIC


@dataclass
class _Block:
    part: float
    """Where in its entry it begins, 0 to 1."""
    fields: list[int]
    body: bytes


class _Rows:
    """All rows of a table, in the order of the file."""

    def __init__(self, table: Table, entries: Sequence[Entry], where: Ints) -> None:
        self._entries = entries
        self.dims = table.offsets.shape[1]
        entry, member = where[table.name, 0], where[table.name, 1]
        # Few entries, so a radix sort; what is in order already is not sorted again.
        order = np.argsort(entry.astype(np.uint16) if len(entries) < 1 << 16 else entry, kind="stable")
        self._begins = np.searchsorted(entry[order], np.arange(len(entries) + 1))
        self._order, self._member, self._table = order, member, table

    def blocks(self, number: int) -> list[_Block]:
        """Return the blocks of one entry."""
        rows = self._order[self._begins[number] : self._begins[number + 1]]
        if not len(rows):
            return []
        dims = self._entries[number].dims
        keys = [self._member[rows], *self._table.offsets[rows, :dims].T]
        if not _ascending(keys):
            rows = rows[np.lexsort(keys[::-1])]
        whole = [
            self._member[rows],
            *self._table.offsets[rows, :dims].T,
            *self._table.sizes[rows, :dims].T,
            self._table.file[rows],
            self._table.at[rows],
            self._table.nbytes[rows],
        ]
        body = columns.encode(whole)
        if len(body) <= _WHOLE_BYTES or len(rows) <= BLOCK_ROWS:
            return [self._block(number, 0.0, whole, body)]
        return [
            self._block(number, first / len(rows), [each[first : first + BLOCK_ROWS] for each in whole])
            for first in range(0, len(rows), BLOCK_ROWS)
        ]

    def _block(self, number: int, part: float, found: Sequence[Ints], body: bytes = b"") -> _Block:
        dims = self._entries[number].dims
        body = body or columns.encode(found)
        offsets, sizes = found[1 : 1 + dims], found[1 + dims : 1 + 2 * dims]
        unused = [0] * (self.dims - dims)
        fields = [number, len(found[0]), 0, len(body), int(found[0].min()), int(found[0].max())]
        fields += [int(each.min()) for each in offsets] + unused
        fields += [int((a + b).max()) for a, b in zip(offsets, sizes, strict=True)] + unused
        return _Block(part, fields, body)


def _ascending(keys: Sequence[Ints]) -> bool:
    """Return whether rows are in order of the first key, then the second, and so on."""
    open_ = np.ones(max(0, len(keys[0]) - 1), bool)
    for key in keys:
        steps = np.diff(key)
        if (steps[open_] < 0).any():
            return False
        open_ &= steps == 0
    return True


@dataclass(frozen=True)
class Rows:
    """Rows of one entry."""

    member: Ints
    offsets: Ints
    """[M, dims]"""
    sizes: Ints
    file: Ints
    at: Ints
    nbytes: Ints


class Boxes:
    """The head of a compact form: lists the content, and where in the file the rest lies."""

    def __init__(self, data: bytes | memoryview, where: str = "checkpoint") -> None:
        """Read the leading bytes of the file: at least :meth:`head_nbytes`.

        Raises:
            DamagedError: they are damaged, or of another version.
        """
        self.where = where
        try:
            self._read(data)
        except (
            ValueError,
            KeyError,
            TypeError,
            IndexError,
            AttributeError,
            zlib.error,
            struct.error,
        ) as error:
            raise self.damaged(str(error)) from error

    @staticmethod
    def head_nbytes(prefix: bytes | memoryview, where: str = "checkpoint") -> int:
        """Return how many leading bytes the head takes, of the first ``PREFIX_BYTES``.

        Raises:
            DamagedError: they are not those of a compact form that this version reads.
        """
        if len(prefix) < PREFIX_BYTES or not is_compact(prefix):
            raise DamagedError(f"{where}: its compact metadata does not begin as such: it is damaged.")
        _, version, _, _, _, names, listed, _ = _PREFIX.unpack_from(prefix)
        if version != VERSION:
            raise DamagedError(
                f"{where}: its compact metadata has version {version}, this Holdfast reads {VERSION}."
            )
        return int(PREFIX_BYTES + names + listed)

    def _read(self, data: bytes | memoryview) -> None:
        end = self.head_nbytes(data, self.where)
        _, _, self.dims, self.files, count, names, _, digest = _PREFIX.unpack_from(data)
        if len(data) < end or xxhash.xxh3_64_intdigest(data[PREFIX_BYTES:end]) != digest:
            raise ValueError("its head is not what was written")
        head = json.loads(zlib.decompress(data[PREFIX_BYTES : PREFIX_BYTES + names]))
        self.entries = name_table.read(head)
        self.save_id = str(head["save_id"])
        self.others = {name: tuple(path) for name, path in head["others"].items()}
        listed = np.frombuffer(zlib.decompress(data[PREFIX_BYTES + names : end]), "<i8")
        self.directory = listed.reshape(_FIELDS + 2 * self.dims, count).T.astype(np.int64)
        self.begins = np.searchsorted(self.directory[:, 0], np.arange(len(self.entries) + 1))
        self.body_at = end
        self.nbytes = end + int(self.directory[:, 3].sum())

    def damaged(self, why: str) -> DamagedError:
        """Return the error for bytes that are not those of a compact form."""
        return DamagedError(f"{self.where}: its compact metadata is damaged: {why}.")

    def blocks(self, entry: int, member: int, boxes: Ints) -> Ints:
        """Return numbers of the blocks that may have boxes of one name that meet any of ``boxes`` ([K, 2, dims])."""
        low, high = int(self.begins[entry]), int(self.begins[entry + 1])
        if high - low == 1:
            return np.array([low])
        dims = self.entries[entry].dims
        listed = self.directory[low:high]
        has = (listed[:, 4] <= member) & (listed[:, 5] >= member)
        first = listed[:, _FIELDS : _FIELDS + dims]
        last = listed[:, _FIELDS + self.dims : _FIELDS + self.dims + dims]
        if dims:
            meets = np.zeros(len(listed), bool)
            for offsets, sizes in boxes:
                meets |= ((first < offsets + sizes) & (last > offsets)).all(axis=1)
            has &= meets
        return low + np.flatnonzero(has)

    def span(self, block: int) -> tuple[int, int]:
        """First byte of a block in the file, and the one after its last."""
        at, nbytes = self.directory[block, 2:4].tolist()
        return self.body_at + at, self.body_at + at + nbytes

    def rows(self, block: int, body: bytes | memoryview) -> Rows:
        """Return the rows of a block.

        Raises:
            DamagedError: the bytes are not those of the block.
        """
        entry, rows = self.directory[block, :2].tolist()
        dims = self.entries[entry].dims
        try:
            found = columns.decode(body, 4 + 2 * dims, rows)
        except ValueError as error:
            raise self.damaged(str(error)) from error
        boxes = np.stack(found[1 : 1 + 2 * dims], axis=1) if dims else np.zeros((rows, 0), np.int64)
        if not ((found[-3] >= 0) & (found[-3] < self.files)).all():
            raise self.damaged("it names files that there are not")
        return Rows(found[0], boxes[:, :dims], boxes[:, dims:], *found[-3:])


def unpack(data: bytes | memoryview, files: Sequence[str], where: str = "checkpoint") -> Table:
    """Return all of a compact form.

    Args:
        data: of the file.
        files: the names that its numbers of files stand for.
        where: names the checkpoint in errors.

    Raises:
        DamagedError: it is damaged.
        CheckpointError: it is about another number of files.
    """
    head = Boxes(data, where)
    if len(data) != head.nbytes:
        raise head.damaged(f"{len(data)} bytes, expected {head.nbytes}")
    if len(files) != head.files:
        raise CheckpointError(f"{where}: its compact metadata is of {head.files} files, not of {len(files)}.")
    starts = np.cumsum([0, *(max(1, entry.count) for entry in head.entries)])
    names = Names(head.entries)
    kinds = [
        ItemKind(entry.name(m), entry.size, entry.properties) for entry in head.entries for m in entry.members
    ]
    paths = {
        entry.name(m): path
        for entry in head.entries
        for m in entry.members
        if (path := entry.path_of(m)) is not None
    }
    assert len(kinds) == len(names)
    total = int(head.directory[:, 1].sum())
    flat = np.empty((5, total), np.int64)
    boxes = np.zeros((2, total, max(1, head.dims)), np.int64)
    boxes[1] = 1
    end = 0
    for block, (entry, count) in enumerate(head.directory[:, :2].tolist()):
        begin, stop = head.span(block)
        rows = head.rows(block, data[begin:stop])
        first, end = end, end + count
        name = starts[entry] + rows.member - (head.entries[entry].low if head.entries[entry].count else 0)
        flat[0, first:end] = name
        flat[1, first:end], flat[2, first:end], flat[3, first:end] = rows.file, rows.at, rows.nbytes
        boxes[0, first:end, : rows.offsets.shape[1]] = rows.offsets
        boxes[1, first:end, : rows.sizes.shape[1]] = rows.sizes
    return Table(
        kinds=kinds,
        files=files,
        planner_data={**paths, **head.others},
        name=flat[0],
        file=flat[1],
        offsets=boxes[0],
        sizes=boxes[1],
        at=flat[2],
        nbytes=flat[3],
    )

"""Writes a checkpoint's ``.metadata`` from arrays, without an object for each box.

What torch.distributed.checkpoint reads is a pickled ``Metadata`` with an object per box and another per place; at
10,240 ranks x 500 sharded tensors, building and pickling these takes minutes and eleven gigabytes. All boxes of
one number of dimensions have the same pickle opcodes, with other numbers in them: so the opcodes are written
once and the numbers put in by whole columns. What comes out is an ordinary pickle of the stock classes.
"""

from __future__ import annotations

import io
import pickle
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import BinaryIO

import numpy as np
import torch
from numpy.typing import NDArray
from torch.distributed.checkpoint.filesystem import CURRENT_DCP_VERSION, _StorageInfo
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorStorageMetadata,
)

from holdfast.storage.checkpoints.format.describe import ItemKind
from holdfast.storage.checkpoints.format.sharing import Ints

_ROWS = 1 << 16  # written at a time


@dataclass(frozen=True)
class Table:
    """All boxes of a checkpoint, M rows, and what their numbers stand for."""

    kinds: Sequence[ItemKind]
    files: Sequence[str]
    planner_data: dict[str, object]
    name: Ints
    """[M] index of the kind."""
    file: Ints
    """[M] index of the file."""
    offsets: Ints
    """[M, D] where the box begins; unused dimensions are ignored."""
    sizes: Ints
    """[M, D]"""
    at: Ints
    """[M] offset in the file."""
    nbytes: Ints
    """[M] length there."""


def write(table: Table, save_id: str, out: BinaryIO) -> None:
    """Write the pickle of the ``Metadata`` that the ``table`` describes."""
    pen = _Pen(out)
    out.write(b"\x80\x04")
    pen.remember("size", torch.Size)
    pen.remember("chunk", ChunkStorageMetadata)
    pen.remember("index", MetadataIndex)
    pen.remember("info", _StorageInfo)
    for word in ("offsets", "sizes", "fqn", "offset", "index_word", "relative_path", "length"):
        pen.remember(word, word.removesuffix("_word"))
    for number, file in enumerate(table.files):
        pen.remember(("file", number), file)
    for number, kind in enumerate(table.kinds):
        pen.remember(("name", number), kind.fqn)
    out.write(pen.new(Metadata) + b"}(")
    out.write(pickle_of("state_dict_metadata"))
    _state(pen, table)
    for key, value in (
        ("planner_data", table.planner_data),
        ("storage_meta", StorageMeta(save_id=save_id)),
        ("version", CURRENT_DCP_VERSION),
    ):
        out.write(pickle_of(key) + pickle_of(value))
    out.write(pickle_of("storage_data"))
    _places(pen, table)
    out.write(b"ub.")


def pickle_of(value: object) -> bytes:
    """Return the opcodes that make a small value, to stand inside another pickle; they use no memo."""
    stream = io.BytesIO()
    # Names of modules are those of Python 3, as the surrounding pickle declares.
    pickler = pickle.Pickler(stream, protocol=2, fix_imports=False)
    pickler.fast = True
    pickler.dump(value)
    return stream.getvalue()[2:-1]


class _Pen:
    """Values that occur often are written once and then named by their number in the memo."""

    def __init__(self, out: BinaryIO) -> None:
        self._out = out
        self._memo: dict[object, int] = {}

    def remember(self, key: object, value: object) -> None:
        number = self._memo[key] = len(self._memo)
        self._out.write(pickle_of(value) + b"r" + struct.pack("<I", number) + b"0")

    def get(self, key: object) -> bytes:
        return b"j" + struct.pack("<I", self._memo[key])

    def number(self, key: object) -> int:
        return self._memo[key]

    def new(self, kind: type) -> bytes:
        return pickle_of(kind) + b")\x81"


def _state(pen: _Pen, table: Table) -> None:
    out = pen._out
    by_name = np.argsort(table.name, kind="stable")
    begins = np.searchsorted(table.name[by_name], np.arange(len(table.kinds) + 1))
    out.write(b"}(")
    for number, kind in enumerate(table.kinds):
        out.write(pen.get(("name", number)))
        if kind.size is None:
            out.write(pickle_of(BytesStorageMetadata()))
            continue
        out.write(pen.new(TensorStorageMetadata) + b"}(")
        out.write(pickle_of("properties") + pickle_of(kind.properties))
        out.write(pickle_of("size") + pickle_of(kind.size) + pickle_of("chunks") + b"](")
        rows = by_name[begins[number] : begins[number + 1]]
        _chunks(pen, table.offsets[rows], table.sizes[rows], len(kind.size))
        out.write(b"eub")
    out.write(b"u")


def _chunks(pen: _Pen, offsets: Ints, sizes: Ints, dims: int) -> None:
    form = _Form(pen)
    form.put(pen.get("chunk") + b")\x81}(" + pen.get("offsets"))
    form.size(dims)
    form.put(pen.get("sizes"))
    form.size(dims)
    form.put(b"ub")
    columns = [*offsets[:, :dims].T, *sizes[:, :dims].T]
    for block in form.filled(columns, len(offsets)):
        pen._out.write(block)


def _places(pen: _Pen, table: Table) -> None:
    dims = np.array([-1 if kind.size is None else len(kind.size) for kind in table.kinds])[table.name]
    # The hint is the box's position in the tensor's list.
    order = np.argsort(table.name, kind="stable")
    begins = np.searchsorted(table.name[order], table.name[order])
    hint = np.empty(len(order), np.int64)
    hint[order] = np.arange(len(order)) - begins
    names = np.array([pen.number(("name", number)) for number in range(len(table.kinds))])[table.name]
    files = np.array([pen.number(("file", number)) for number in range(len(table.files))])[table.file]
    pen._out.write(b"}(")
    for count in np.unique(dims):
        rows = np.flatnonzero(dims == count)
        form = _Form(pen)
        form.put(pen.get("index") + b")\x81}(" + pen.get("fqn"))
        form.memo()
        columns = [names[rows]]
        if count >= 0:
            form.put(pen.get("offset"))
            form.size(int(count))
            form.put(pen.get("index_word"))
            form.integer()
            columns += [*table.offsets[rows, :count].T, hint[rows]]
        else:
            form.put(pen.get("index_word") + b"N")
        form.put(b"ub" + pen.get("info") + b")\x81}(" + pen.get("relative_path"))
        form.memo()
        form.put(pen.get("offset"))
        form.integer()
        form.put(pen.get("length"))
        form.integer()
        form.put(b"ub")
        columns += [files[rows], table.at[rows], table.nbytes[rows]]
        for block in form.filled(columns, len(rows)):
            pen._out.write(block)
    pen._out.write(b"u")


class _Form:
    """Opcodes with gaps for numbers."""

    def __init__(self, pen: _Pen) -> None:
        self._pen = pen
        self._text = bytearray()
        self._gaps: list[tuple[int, int]] = []

    def put(self, opcodes: bytes) -> None:
        self._text += opcodes

    def integer(self) -> None:
        """Write a number of 8 bytes (LONG1)."""
        self._text += b"\x8a\x08"
        self._gap(8)

    def memo(self) -> None:
        """Write a value by its number in the memo (LONG_BINGET)."""
        self._text += b"j"
        self._gap(4)

    def size(self, dims: int) -> None:
        """Write a ``torch.Size`` of so many numbers."""
        self.put(self._pen.get("size"))
        if dims > 3:
            self.put(b"(")
        for _ in range(dims):
            self.integer()
        self.put({0: b")", 1: b"\x85", 2: b"\x86", 3: b"\x87"}.get(dims, b"t") + b"\x85R")

    def filled(self, columns: Sequence[NDArray[np.int64]], rows: int) -> Iterator[bytes]:
        """Yield the opcodes of all rows, a block of rows at a time."""
        assert len(columns) == len(self._gaps)
        template = np.frombuffer(bytes(self._text), np.uint8)
        for first in range(0, rows, _ROWS):
            count = min(_ROWS, rows - first)
            block = np.tile(template, (count, 1))
            for column, (at, width) in zip(columns, self._gaps, strict=True):
                numbers = np.ascontiguousarray(column[first : first + count], "<i8" if width == 8 else "<u4")
                block[:, at : at + width] = numbers.view(np.uint8).reshape(count, width)
            yield block.tobytes()

    def _gap(self, width: int) -> None:
        self._gaps.append((len(self._text), width))
        self._text += bytes(width)

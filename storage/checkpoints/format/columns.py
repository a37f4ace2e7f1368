"""Columns of integers as few bytes: by the rule that they follow, or as narrow numbers where they follow none.

What an evenly sharded state consists of grows by equal steps from rank to rank: offsets, places, numbers of files.
The steps are stored with how often each occurs, so that ten thousand rows are a few numbers.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Ints: TypeAlias = NDArray[np.int64]

_HEAD = struct.Struct("<BBIq")  # form, bytes of a number, numbers, first or least value
_BY_STEPS, _NARROW = 1, 0
_STEP_BYTES = 12
_WIDTHS = (1, 2, 4, 8)


def encode(columns: Sequence[Ints]) -> bytes:
    """Encode columns of one length, at least 1."""
    return zlib.compress(b"".join(_encode(column) for column in columns), 1)


def decode(data: bytes | memoryview, columns: int, rows: int) -> list[Ints]:
    """Decode the columns that :func:`encode` was given.

    Raises:
        ValueError: the bytes are damaged.
    """
    try:
        raw = zlib.decompress(data)
        at, found = 0, []
        for _ in range(columns):
            column, at = _decode(raw, at, rows)
            found.append(column)
    except (zlib.error, struct.error) as error:
        raise ValueError(f"columns are damaged: {error}") from error
    if at != len(raw) or any(len(column) != rows for column in found):
        raise ValueError(f"{columns} columns of {rows} rows do not make up {len(raw)} bytes")
    return found


def _encode(column: Ints) -> bytes:
    steps = np.diff(column)
    first = np.flatnonzero(np.diff(steps, prepend=steps[:1] - 1)) if len(steps) else np.zeros(0, np.int64)
    least = int(column.min())
    width = next(each for each in _WIDTHS if each == 8 or int(column.max()) - least < 1 << 8 * each)
    if len(first) * _STEP_BYTES <= len(column) * width:
        head = _HEAD.pack(_BY_STEPS, 8, len(first), int(column[0]))
        counts = np.diff(np.append(first, len(steps)))
        return head + steps[first].astype("<i8").tobytes() + counts.astype("<u4").tobytes()
    return _HEAD.pack(_NARROW, width, len(column), least) + (column - least).astype(f"<u{width}").tobytes()


def _decode(raw: bytes, at: int, rows: int) -> tuple[Ints, int]:
    form, width, count, value = _HEAD.unpack_from(raw, at)
    at += _HEAD.size
    if width not in _WIDTHS or form not in (_BY_STEPS, _NARROW):
        raise ValueError(f"column of form {form} and width {width}")
    if form == _NARROW:
        numbers = np.frombuffer(raw, f"<u{width}", count, at)
        return numbers.astype(np.int64) + value, at + count * width
    steps = np.frombuffer(raw, "<i8", count, at)
    counts = np.frombuffer(raw, "<u4", count, at + 8 * count)
    if int(counts.sum()) != rows - 1:
        raise ValueError(f"column of {int(counts.sum()) + 1} rows, expected {rows}")
    column = np.empty(rows, np.int64)
    column[0] = value
    column[1:] = np.repeat(steps, counts)
    return np.cumsum(column), at + _STEP_BYTES * count

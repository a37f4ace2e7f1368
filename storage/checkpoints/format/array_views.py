"""Numpy arrays of one part that have the same memory: a change of one changes the others, after a restore as before."""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any, NamedTuple

import numpy as np

from holdfast.storage.checkpoints.format.arrays import Array, type_again, type_description
from holdfast.storage.checkpoints.format.kind import ValueKind
from holdfast.storage.checkpoints.format.places import Path, refused

_MOST_GAPS = 4
"""Memory that overlapping arrays have together may have so many times the bytes of their elements."""
_SPARE_BYTES = 4096
_MOST_BYTES = 64 << 20


class _View(NamedTuple):
    low: int
    high: int
    value: Array
    path: Path


class ArrayViews:
    """Finds arrays that overlap, by the array that has their memory."""

    def __init__(self) -> None:
        self._seen: dict[int, list[_View]] = {}

    def note(self, value: Array, path: Path) -> None:
        """Take notice of an array."""
        if value.size:
            low, high = np.lib.array_utils.byte_bounds(value)
            self._seen.setdefault(id(root_of(value)), []).append(_View(low, high, value, path))

    def overlapping(self) -> Set[int]:
        """Return the identities of those whose memory several arrays have: each is written as a window of it."""
        return {root for root, seen in self._seen.items() if len(seen) > 1 and _belongs_together(seen)}

    def require_apart(self, tensors: Mapping[int, int]) -> None:
        """Refuse an array in the memory of a tensor, given the tensors' first addresses and ends.

        Raises:
            ScriptRefusedError: there is one; names its path.
        """
        for each in (view for seen in self._seen.values() for view in seen):
            if any(low < each.high and each.low < high for low, high in tensors.items()):
                raise refused(
                    each.path,
                    "a numpy array in the memory of a tensor of the same part: they would be apart after a restore",
                    "return one of them from state_dict(), and make the other from it in load_state_dict()",
                )


def root_of(value: Array) -> Array:
    """Return the array that has the memory of ``value``."""
    while type(value.base) is np.ndarray:
        value = value.base
    return value


def _belongs_together(seen: list[_View]) -> bool:
    root = root_of(seen[0].value)
    if not root.flags.forc or root.dtype.hasobject or not root.ndim:
        return False
    ordered = sorted(seen, key=lambda view: view[:2])
    end, meet = ordered[0].high, False
    for each in ordered[1:]:
        meet, end = meet or each.low < end, max(end, each.high)
    different = {id(each.value): each.value.nbytes for each in seen}
    most = min(_MOST_BYTES, _MOST_GAPS * sum(different.values()) + _SPARE_BYTES)
    return meet and len(different) > 1 and root.nbytes <= most


def window(value: Array) -> tuple[Any, ...]:
    """Return an array's root, and where in it the array lies."""
    root = root_of(value)
    offset = value.__array_interface__["data"][0] - root.__array_interface__["data"][0]
    return root, type_description(value.dtype), value.shape, value.strides, offset, value.flags.writeable


def _window_again(written: Any) -> Array:
    root, kind, shape, strides, offset, writeable = written
    flat = (root if root.flags.c_contiguous else root.T).reshape(-1).view(np.uint8)
    made: Array = np.ndarray(shape, type_again(kind), buffer=flat, offset=offset, strides=strides)
    made.flags.writeable = made.flags.writeable and writeable
    return made


WINDOW = ValueKind(
    "np.window", lambda value, down: down(window(value), ""), lambda data, up: _window_again(up(data))
)

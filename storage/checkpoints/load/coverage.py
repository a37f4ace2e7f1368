"""Whether a load gives every element of every tensor, and uses everything that was saved. Pure.

A load plan lists boxes to be copied. Boxes that a checkpoint lacks are simply not in it, and the elements there would
stay as the fresh process made them; so what is read is compared with what is wanted before a byte is copied.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, TensorStorageMetadata
from torch.distributed.checkpoint.planner import LoadItemType, ReadItem

from holdfast.errors import CheckpointError, UncoveredError

MOST_NAMED = 3
"""Paths or boxes that a message names; the rest is counted."""


_FEW = 8
"""Boxes that are compared with each other; more are sorted."""


@dataclass
class Wanted:
    """The boxes and objects that a rank is about to fill."""

    boxes: dict[str, Sequence[ChunkStorageMetadata]] = field(default_factory=dict)
    """Of each tensor that the checkpoint has under its name, the boxes that lie here."""
    absent: dict[str, int] = field(default_factory=dict)
    """Of each name that the checkpoint lacks, the elements (of an object: 1)."""


@dataclass(frozen=True)
class Gap:
    """A tensor of which elements are missing."""

    path: str
    missing: int
    needed: int


def gaps(wanted: Wanted, items: Iterable[ReadItem]) -> list[Gap]:
    """Return the tensors of which ``items`` do not fill every element, in the state's order."""
    filled: defaultdict[str, list[ReadItem]] = defaultdict(list)
    for item in items:
        if item.type is not LoadItemType.BYTE_IO:
            filled[item.dest_index.fqn].append(item)
    found = []
    for name, boxes in wanted.boxes.items():
        reads = filled.get(name, [])
        if len(boxes) == len(reads) == 1 and reads[0].lengths == boxes[0].sizes:
            continue  # nearly all of them
        missing = sum(
            _missing(box, [each for each in reads if each.dest_index.offset == box.offsets])
            for box in boxes
            if 0 not in box.sizes
        )
        if missing:
            found.append(Gap(name, missing, sum(math.prod(box.sizes) for box in boxes)))
    return found + [Gap(name, count, count) for name, count in wanted.absent.items()]


def _missing(box: ChunkStorageMetadata, items: Sequence[ReadItem]) -> int:
    """Return the number of elements of a box that no item fills. Items may overlap: then counting is not enough."""
    total, needed = sum(math.prod(item.lengths) for item in items), math.prod(box.sizes)
    if len(items) <= 1 or not box.sizes or total == 0:
        return max(0, needed - total)
    if len(items) <= _FEW and not any(_overlap(*pair) for pair in itertools.combinations(items, 2)):
        return needed - total
    spans = np.array([(item.dest_offsets, item.lengths) for item in items], np.int64)
    spans = spans[spans[:, 1].all(axis=1)]
    low, high = spans[:, 0], spans[:, 0] + spans[:, 1]
    if _apart_along_one(low, high):
        return needed - total
    return needed - _union(low, high)


def _overlap(left: ReadItem, right: ReadItem) -> bool:
    """Return whether two boxes have an element in common; may be true for a box without elements."""
    return all(
        a < b + m and b < a + n
        for a, n, b, m in zip(left.dest_offsets, left.lengths, right.dest_offsets, right.lengths, strict=True)
    )


def _apart_along_one(low: np.ndarray, high: np.ndarray) -> bool:
    """Return whether no two boxes share a place along one dimension: the common case, without comparing all pairs."""
    for dim in range(low.shape[1]):
        order = np.argsort(low[:, dim], kind="stable")
        if (low[order[1:], dim] >= high[order[:-1], dim]).all():
            return True
    return False


def _union(low: np.ndarray, high: np.ndarray) -> int:
    """Return the number of elements in at least one of the boxes: counted on the grid that their edges make."""
    edges = [np.unique(np.concatenate([low[:, dim], high[:, dim]])) for dim in range(low.shape[1])]
    filled = np.zeros([len(each) - 1 for each in edges], bool)
    first = [np.searchsorted(each, low[:, dim]) for dim, each in enumerate(edges)]
    last = [np.searchsorted(each, high[:, dim]) for dim, each in enumerate(edges)]
    for number in range(len(low)):
        filled[tuple(slice(a[number], b[number]) for a, b in zip(first, last, strict=True))] = True
    counts = filled.astype(np.int64)
    for each in reversed(edges):  # fold the last dimension with the lengths of its cells
        counts = counts @ np.diff(each)
    return int(counts)


def require_covered(
    wanted: Wanted, items: Iterable[ReadItem], saved: Mapping[str, object], source: str = ""
) -> None:
    """See that ``items`` fill everything that is wanted.

    Args:
        wanted: by the state.
        items: of the load plan.
        saved: the checkpoint's metadata by name, for the message.
        source: what is read, for the message.

    Raises:
        UncoveredError: some element would stay as it is; names the first path and counts the others.
    """
    found = gaps(wanted, items)
    if not found:
        return
    first = found[0]
    more = f"; and {len(found) - 1} more paths" if len(found) > 1 else ""
    raise UncoveredError(
        f"{source}{': ' if source else ''}{first.path}: {_reason(first, wanted, saved.get(first.path))}{more}",
        first.path,
        first.missing,
        first.needed,
    )


def _reason(gap: Gap, wanted: Wanted, saved: object) -> str:
    if gap.path in wanted.absent:
        return "Missing key in checkpoint: nothing was saved under that name"
    held = [] if not isinstance(saved, TensorStorageMetadata) else saved.chunks
    return (
        f"{gap.missing} of {gap.needed} elements are not in it (it has {_boxes(held)}; "
        f"needed are {_boxes(wanted.boxes[gap.path])})"
    )


def _boxes(boxes: Sequence[ChunkStorageMetadata]) -> str:
    if not boxes:
        return "nothing"
    named = [
        "[" + ", ".join(f"{at}:{at + size}" for at, size in zip(box.offsets, box.sizes, strict=True)) + "]"
        for box in boxes[:MOST_NAMED]
    ]
    more = f" and {len(boxes) - MOST_NAMED} more" if len(boxes) > MOST_NAMED else ""
    return ", ".join(named) + more


def require_size(path: str, saved: Sequence[int], now: Sequence[int]) -> None:
    """See that a whole tensor has the size that it was saved with.

    Raises:
        CheckpointError: it has another.
    """
    if tuple(saved) != tuple(now):
        raise CheckpointError(
            f"{path}: it was saved with the size {list(saved)}, the state has {list(now)}. Make the state as it was "
            "saved, or leave this part out of it, or restore with the code version that saved it."
        )


def unconsumed(
    saved_names: Iterable[str], wanted_names: Iterable[str], private_prefixes: Sequence[str] = ()
) -> list[str]:
    """Return the names that were saved but are not wanted, in the checkpoint's order.

    Args:
        saved_names: of the checkpoint.
        wanted_names: of the state.
        private_prefixes: what other ranks alone have: a name, the beginning of dotted names, or with ``/`` at its end
            the beginning of any.
    """
    whole, begin = (
        set(private_prefixes),
        tuple(each if each.endswith("/") else f"{each}." for each in private_prefixes),
    )
    wanted = set(wanted_names)
    return [
        name
        for name in saved_names
        if name not in wanted and name not in whole and not (begin and name.startswith(begin))
    ]


def require_consumed(
    saved_names: Iterable[str], wanted_names: Iterable[str], private_prefixes: Sequence[str] = ()
) -> None:
    """See that everything that was saved has a place in the state.

    Raises:
        CheckpointError: something would be dropped; names it.
    """
    left = unconsumed(saved_names, wanted_names, private_prefixes)
    if not left:
        return
    more = f" and {len(left) - MOST_NAMED} more" if len(left) > MOST_NAMED else ""
    raise CheckpointError(
        f"{', '.join(itertools.islice(left, MOST_NAMED))}{more}: saved, and the state has no place for it. Give "
        "Session.restore() what was given to Session.checkpoint(), or restore with the code version that saved it."
    )

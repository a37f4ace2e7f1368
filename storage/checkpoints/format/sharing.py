"""Assigns boxes to the ranks that save them: each once, the bytes spread evenly over ranks and machines. Pure.

Boxes that several ranks hold (data-parallel replicas) are divided among their holders by worst fit: the
largest next to the rank that has least, as ByteCheckpoint does (arXiv 2407.20143, section 4.1). A box larger than a
holder's fair share is cut along its first dimension first, so that one large embedding does not all fall to
one rank. Everything is done on arrays: at 10,240 ranks x 500 tensors there are five million items.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Ints: TypeAlias = NDArray[np.int64]

SMALLEST_PIECE_BYTES = 1 << 20
"""Boxes are not cut into smaller pieces than this."""


@dataclass(frozen=True)
class Items:
    """The items that all ranks hold, rank by rank; N items of at most D dimensions."""

    rank: Ints
    """[N] ascending: the rank that holds the item."""
    name: Ints
    """[N] number of the tensor or object."""
    boxes: Ints
    """[N, 2, D] offsets and sizes; unused dimensions are 0 and 1."""
    row_nbytes: Ints
    """[N] bytes of one row, a slice of size 1 along the first dimension (of the whole item without one)."""


@dataclass(frozen=True)
class Pieces:
    """Which rank saves which part of its items, by rank and item; M pieces."""

    item: Ints
    """[M] index into the :class:`Items`, ascending."""
    start: Ints
    """[M] first row of the item's box."""
    stop: Ints
    """[M] one beyond the last row."""


def share_out(items: Items, machine_of_rank: Ints) -> Pieces:
    """Give each box to one of its holders, or its parts to several.

    Args:
        items: what the ranks hold.
        machine_of_rank: [R] number of each rank's machine.
    """
    order, first, count = _boxes(items)
    rows = items.boxes[:, 1, 0]
    nbytes = items.row_nbytes * rows
    alone = order[first[count == 1]]
    load = np.bincount(items.rank[alone], weights=nbytes[alone], minlength=len(machine_of_rank))
    parts = [np.stack([alone, np.zeros_like(alone), rows[alone]])]
    turn = _turns(machine_of_rank)
    for boxes in _by_holders(items, order, first, count):
        parts.append(_divide(items, boxes, load, turn))
    item, start, stop = np.concatenate(parts, axis=1)
    by_item = np.lexsort((start, item))
    return Pieces(item[by_item], start[by_item], stop[by_item])


def _boxes(items: Items) -> tuple[Ints, Ints, Ints]:
    """Return items ordered by box and then rank; where each box begins in that order; how many hold it."""
    columns = [items.name, *items.boxes.reshape(len(items.name), -1).T]
    key = np.zeros(len(items.name), dtype=np.uint64)
    for column in columns:
        key = _mix(key ^ column.astype(np.uint64))
    order = np.argsort(key, kind="stable")
    changed = np.flatnonzero(np.diff(key[order])) + 1
    first = np.concatenate([np.zeros(min(1, len(order)), np.int64), changed])
    count = np.diff(np.append(first, len(order)))
    of_first = np.repeat(order[first], count)
    if any((column[order] != column[of_first]).any() for column in columns):
        return _boxes_slowly(columns)
    return order, first, count


def _boxes_slowly(columns: list[Ints]) -> tuple[Ints, Ints, Ints]:
    """Return the same as :func:`_boxes`, when two boxes have one hash."""
    order = np.lexsort(columns[::-1])
    different = np.any([np.diff(column[order]) != 0 for column in columns], axis=0)
    first = np.concatenate([[0], np.flatnonzero(different) + 1])
    return order, first, np.diff(np.append(first, len(order)))


def _mix(value: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Apply splitmix64's finaliser (Steele, Lea, Flood 2014)."""
    value = value + np.uint64(0x9E3779B97F4A7C15)
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


def _by_holders(items: Items, order: Ints, first: Ints, count: Ints) -> list[Ints]:
    """Return boxes with several holders, grouped by their holders: item indices [boxes, holders]; few holders first."""
    common = np.flatnonzero(count > 1)
    if not len(common):
        return []
    totals = np.concatenate([[np.uint64(0)], np.cumsum(_mix(items.rank[order].astype(np.uint64)))])
    # Unsigned sums wrap around, and so do their differences.
    who = totals[first[common] + count[common]] - totals[first[common]]
    groups = np.lexsort((who, count[common]))
    keys = np.stack([count[common][groups].astype(np.uint64), who[groups]])
    cuts = np.flatnonzero(np.any(np.diff(keys, axis=1) != 0, axis=0)) + 1
    found = []
    for group in np.split(common[groups], cuts):
        held = order[first[group][:, None] + np.arange(count[group[0]])]
        ranks = items.rank[held]
        if (ranks == ranks[0]).all():
            found.append(held)
        else:  # two sets of ranks with one hash
            found += [row[None] for row in held]
    return found


def _turns(machine_of_rank: Ints) -> Ints:
    """Return [R]: place of each rank in a round over machines: every machine's first rank, then every second one."""
    order = np.argsort(machine_of_rank, kind="stable")
    machines = machine_of_rank[order]
    on_machine = np.empty(len(order), dtype=np.int64)
    on_machine[order] = np.arange(len(order)) - np.searchsorted(machines, machines)
    turn = np.empty(len(order), dtype=np.int64)
    turn[np.lexsort((machine_of_rank, on_machine))] = np.arange(len(order))
    return turn


def _divide(items: Items, held: Ints, load: NDArray[Any], turn: Ints) -> Ints:
    """Divide boxes among their common holders; ``load`` (bytes per rank so far) grows. Returns [3, pieces]."""
    ranks = items.rank[held[0]]
    rows = items.boxes[held[:, 0], 1, 0]
    row_nbytes = items.row_nbytes[held[:, 0]]
    share = max(SMALLEST_PIECE_BYTES, -(-int((rows * row_nbytes).sum()) // len(ranks)))
    wanted = np.minimum(np.maximum(1, -(-rows * row_nbytes // share)), np.maximum(1, rows))
    each = np.maximum(1, -(-rows // wanted))
    pieces = [
        (min(step, height - at) * width, box, at, min(height, at + step))
        for box, (height, width, step) in enumerate(
            zip(rows.tolist(), row_nbytes.tolist(), each.tolist(), strict=True)
        )
        for at in range(0, max(1, height), step)
    ]
    pieces.sort(key=lambda piece: -piece[0])
    heap = [(load[rank], int(turn[rank]), holder) for holder, rank in enumerate(ranks)]
    heapq.heapify(heap)
    chosen = np.empty((3, len(pieces)), dtype=np.int64)
    for number, (nbytes, box, start, stop) in enumerate(pieces):
        so_far, at, holder = heap[0]
        heapq.heapreplace(heap, (so_far + max(1, nbytes), at, holder))
        chosen[:, number] = held[box, holder], start, stop
    for so_far, _, holder in heap:
        load[ranks[holder]] = so_far
    return chosen

"""The order of one source's samples, any place of which can be computed. Pure.

A source is a row of *windows* (some partitions each), a window a set of *splits* (row groups, ranges of lines). In each
window the splits are shuffled and cut into one stretch per lane; a lane's stretch is cut into blocks of a fixed number
of samples, each shuffled in itself. So a reader needs one block per lane in memory and the position is one number.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from holdfast.data.deal import dealt
from holdfast.data.order import permuted

Numbers = NDArray[np.int64]


@dataclass(frozen=True)
class Block:
    """Samples that are read and shuffled together: a part of a lane's stretch of a window."""

    turn: int
    """How many times the source was gone through before."""
    window: int
    lane: int
    number: int
    """Within the lane's stretch."""


@dataclass(frozen=True)
class SampleRun:
    """Consecutive samples of a block."""

    block: Block
    first: int
    last: int


@dataclass(frozen=True)
class Stretch:
    """Consecutive rows of a split, as they lie in the file."""

    split: int
    """Its number among all splits of the source."""
    first: int
    last: int


class SourceOrder:
    """The order of a source that may grow: windows are only ever added at the end."""

    def __init__(
        self,
        windows: Sequence[Sequence[int]],
        *,
        seed: str,
        lanes: int,
        shuffle: int,
        repeat: bool = False,
        offset: int = 0,
    ) -> None:
        """Define the order.

        Args:
            windows: rows of each split, by window.
            seed: of this source's shuffles.
            lanes: number of lanes.
            shuffle: samples of a block; 0: splits and rows in the order of the listing.
            repeat: begin again, in another order, at the end.
            offset: the lane that gets the first sample (any number; lanes are counted round and round).
        """
        self._windows = [np.array(window, dtype=np.int64) for window in windows]
        self._firsts = np.cumsum([0] + [len(each) for each in self._windows]).tolist()
        self._starts = np.cumsum([0] + [int(each.sum()) for each in self._windows]).tolist()
        self.total: int = self._starts[-1]
        """Samples of one turn."""
        self.repeat = repeat
        self._seed, self._lanes, self._offset = seed, lanes, offset
        self._shuffle, self._per_block = shuffle > 0, shuffle or 4096
        self._splits_of = lru_cache(maxsize=8)(self._shuffled_splits)

    def count(self, lane: int) -> int:
        """Return how many samples of one turn are in ``lane``; of the first turn, where it repeats."""
        return self._before(self.total, lane)

    def has(self, lane: int, count: int) -> bool:
        """Return whether the first ``count`` samples of the lane are known."""
        return (self.repeat and self.total > 0) or count <= self.count(lane)

    def runs(self, lane: int, first: int, last: int) -> Iterator[SampleRun]:
        """Yield where the samples ``first`` to ``last`` of the lane are, in their order."""
        while first < last:
            place = (lane - self._offset) % self._lanes + first * self._lanes
            turn, within = divmod(place, self.total)
            window = bisect_right(self._starts, within) - 1
            begun = self._before(turn * self.total + self._starts[window], lane)
            in_window = first - begun
            number, at = divmod(in_window, self._per_block)
            size = self._size(turn, window, lane, number)
            end = min(size, at + last - first)
            yield SampleRun(Block(turn, window, lane, number), at, end)
            first += end - at

    def stretches(self, block: Block) -> tuple[list[Stretch], Numbers | None]:
        """Return the rows of a block as they are read, and the order in which they are used (None: as read)."""
        counts = [self._in_window(block.turn, block.window, lane) for lane in range(block.lane)]
        start = sum(counts) + block.number * self._per_block
        size = self._size(block.turn, block.window, block.lane, block.number)
        splits, ends = self._splits_of(block.turn, block.window)
        found, at = [], start
        number = int(np.searchsorted(ends, at, side="right"))
        while at < start + size:
            begin = int(ends[number - 1]) if number else 0
            stop = min(int(ends[number]), start + size)
            if at < stop:
                split = self._firsts[block.window] + int(splits[number])
                found.append(Stretch(split, at - begin, stop - begin))
            at, number = max(at, stop), number + 1
        if not self._shuffle:
            return found, None
        key = self._key(block.turn, block.window, block.lane, block.number)
        return found, permuted(size, key)

    def all_splits(self) -> Iterator[int]:
        """Yield the splits of the first turn, in its order."""
        for window in range(len(self._windows)):
            splits, _ = self._splits_of(0, window)
            yield from (self._firsts[window] + int(each) for each in splits)

    def _before(self, place: int, lane: int) -> int:
        """Return how many of the source's first ``place`` samples are in the lane."""
        lane = (lane - self._offset) % self._lanes
        return dealt(place, lane, self._lanes)

    def _in_window(self, turn: int, window: int, lane: int) -> int:
        start, stop = (turn * self.total + self._starts[each] for each in (window, window + 1))
        return self._before(stop, lane) - self._before(start, lane)

    def _size(self, turn: int, window: int, lane: int, number: int) -> int:
        return min(self._per_block, self._in_window(turn, window, lane) - number * self._per_block)

    def _shuffled_splits(self, turn: int, window: int) -> tuple[Numbers, Numbers]:
        """Return the splits of a window in the order of this turn, and the place after each one's last row."""
        rows = self._windows[window]
        key = self._key(turn, window)
        order = permuted(len(rows), key) if self._shuffle else np.arange(len(rows), dtype=np.int64)
        return order, np.cumsum(rows[order])

    def _key(self, *of: int) -> int:
        return key_of(self._seed, *of)


def key_of(seed: str, *of: int) -> int:
    """Return a number of 63 bits that follows from the arguments alone, in every process and version."""
    text = "/".join((seed, *map(str, of)))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1

"""The plan of reads: which rank reads which bytes of a checkpoint in S3, and to which ranks it passes them on.

Ranks that need the same bytes split them: every byte is read once and then exchanged, as in ByteCheckpoint
(arXiv 2407.20143, section 4: "redundant reads are eliminated"). Files are read in whole blocks, because their digests
are per block. All of it is a few sorts over arrays, so that ten thousand ranks are planned in seconds.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Needs:
    """The needs of the ranks: parallel arrays, one entry per range of bytes of one file."""

    rank: Ints
    file: Ints
    start: Ints
    """First byte."""
    end: Ints
    """Byte after the last."""


@dataclass(frozen=True)
class ReadPlan:
    """Pieces in order of (file, start): parallel arrays. Each begins and ends at its file's block borders."""

    file: Ints
    start: Ints
    end: Ints
    reader: Ints
    """The rank that reads the piece; it needs the piece itself."""
    turn: Ints
    """Round of the exchange in which the piece travels."""
    first: Ints
    """The ranks that need piece ``i`` are ``wanted_by[first[i]:first[i] + count[i]]``."""
    count: Ints
    wanted_by: Ints
    needed_nbytes: int
    """Bytes that at least one rank needs."""

    @property
    def turns(self) -> int:
        """Rounds of the exchange."""
        return int(self.turn.max()) + 1 if self.turn.size else 0

    @property
    def read_nbytes(self) -> int:
        """Bytes that are read in all."""
        return int((self.end - self.start).sum())

    @property
    def shared(self) -> bool:
        """Whether any piece is needed by more than its reader."""
        return bool((self.count > 1).any())


def plan_reads(
    needs: Needs, block_nbytes: Ints, file_nbytes: Ints, *, piece_nbytes: int, turn_nbytes: int
) -> ReadPlan:
    """Split what ``needs`` names among the ranks that need it.

    Args:
        needs: of all ranks; ranges may touch or overlap.
        block_nbytes: of each file, the size of its blocks.
        file_nbytes: of each file, its size.
        piece_nbytes: largest piece (one request), rounded down to whole blocks, but at least one block.
        turn_nbytes: how much a rank reads in one round of the exchange.
    """
    empty = np.zeros(0, np.int64)
    if needs.rank.size == 0:
        return ReadPlan(empty, empty, empty, empty, empty, empty, empty, empty, 0)
    block = block_nbytes[needs.file]
    # Counted in blocks from here on. One number per place: file * span + block.
    span = int((-(-file_nbytes // block_nbytes)).max()) + 1
    low, high = needs.start // block, -(-needs.end // block)
    rank, begin, end = _merge(
        needs.rank, needs.file * span + low, needs.file * span + high, block_nbytes.size * span
    )
    cuts = np.unique(np.concatenate([begin, end]))
    first_cut, last_cut = np.searchsorted(cuts, begin), np.searchsorted(cuts, end)
    # One entry per (elementary interval, rank that needs it), by interval, then rank.
    lengths = last_cut - first_cut
    interval = _runs(first_cut, lengths)
    wanting = np.repeat(rank, lengths)
    order = np.argsort(interval, kind="stable")  # ranks are in order already
    interval, wanting = interval[order], wanting[order]
    first = np.flatnonzero(np.diff(interval, prepend=-1))
    known, count = interval[first], np.diff(first, append=interval.size)
    share, place, size = _shares(cuts[known], cuts[known + 1] - cuts[known], count)
    piece_of, start, end = _pieces(place, size, np.maximum(1, piece_nbytes // block_nbytes[place // span]))
    share = share[piece_of]
    # The interval's bytes so far turn the order of its readers, so that single blocks are spread as well.
    before = np.cumsum(cuts[known + 1] - cuts[known]) - (cuts[known + 1] - cuts[known])
    number = share[:, 0]
    reader = wanting[first[number] + (share[:, 1] + before[number]) % count[number]]
    file = start // span
    size = block_nbytes[file]
    start_byte = (start % span) * size
    end_byte = np.minimum((end - file * span) * size, file_nbytes[file])
    return ReadPlan(
        file=file,
        start=start_byte,
        end=end_byte,
        reader=reader,
        turn=_turns(reader, end_byte - start_byte, turn_nbytes),
        first=first[number],
        count=count[number],
        wanted_by=wanting,
        needed_nbytes=_union_nbytes(needs),
    )


def _merge(rank: Ints, begin: Ints, end: Ints, places: int) -> tuple[Ints, Ints, Ints]:
    """Return the ranges of each rank joined where they touch or overlap."""
    # A rank's places come after all of the rank before it, so one running maximum serves all ranks.
    begin, end = begin + rank * places, end + rank * places
    order = np.argsort(begin, kind="stable")
    begin, end = begin[order], np.maximum.accumulate(end[order])
    fresh = np.ones(begin.size, bool)
    fresh[1:] = begin[1:] > end[:-1]
    starts = np.flatnonzero(fresh)
    ends = end[np.append(starts[1:] - 1, begin.size - 1)]
    rank = begin[starts] // places
    return rank, begin[starts] - rank * places, ends - rank * places


def _runs(first: Ints, lengths: Ints) -> Ints:
    """Return ``first[i], first[i] + 1, ...`` (``lengths[i]`` numbers) for each i, one after the other."""
    offsets = np.cumsum(lengths) - lengths
    return np.arange(int(lengths.sum())) - np.repeat(offsets - first, lengths)


def _shares(begin: Ints, blocks: Ints, count: Ints) -> tuple[Ints, Ints, Ints]:
    """Each interval cut into as many even shares as ranks need it; empty ones left out.

    Returns:
        (interval, number of the share) pairs, the shares' first blocks, and their sizes in blocks.
    """
    interval = np.repeat(np.arange(begin.size), count)
    number = _runs(np.zeros(begin.size, np.int64), count)
    low = blocks[interval] * number // count[interval]
    high = blocks[interval] * (number + 1) // count[interval]
    kept = high > low
    pairs = np.stack([interval[kept], number[kept]], axis=1)
    return pairs, begin[interval[kept]] + low[kept], (high - low)[kept]


def _pieces(begin: Ints, blocks: Ints, most: Ints) -> tuple[Ints, Ints, Ints]:
    """Cut shares into pieces of at most ``most`` blocks: (share, first block, block after the last)."""
    parts = -(-blocks // most)
    share = np.repeat(np.arange(begin.size), parts)
    number = _runs(np.zeros(begin.size, np.int64), parts)
    start = begin[share] + number * most[share]
    return share, start, np.minimum(start + most[share], begin[share] + blocks[share])


def _turns(reader: Ints, nbytes: Ints, turn_nbytes: int) -> Ints:
    """Return the round of each piece: a reader's pieces in order, so much per round."""
    order = np.argsort(reader, kind="stable")
    total = np.cumsum(nbytes[order])
    before = total - nbytes[order]
    _, first, count = np.unique(reader[order], return_index=True, return_counts=True)
    turn = np.empty(reader.size, np.int64)
    turn[order] = (before - np.repeat(before[first], count)) // turn_nbytes
    return turn


def _union_nbytes(needs: Needs) -> int:
    """Return the number of bytes that at least one of the ranges covers."""
    span = int(needs.end.max()) + 1
    order = np.argsort(needs.file * span + needs.start, kind="stable")
    begin = (needs.file * span + needs.start)[order]
    end = np.maximum.accumulate((needs.file * span + needs.end)[order])
    previous = np.concatenate([[0], end[:-1]])
    return int(np.maximum(0, end - np.maximum(begin, previous)).sum())

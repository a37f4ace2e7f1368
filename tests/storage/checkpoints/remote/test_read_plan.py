"""The assignment of a checkpoint's bytes in S3 to the ranks that read them."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from holdfast.storage.checkpoints.remote.read_plan import Needs, ReadPlan, plan_reads

BLOCK = 4
FILES = np.array([50, 7, 64])
BLOCKS = np.array([BLOCK, BLOCK, 64])


def needs(ranges: list[tuple[int, int, int, int]]) -> Needs:
    columns = np.array(ranges, np.int64).reshape(-1, 4).T
    return Needs(*columns)


def plan(ranges: list[tuple[int, int, int, int]], piece: int = 12, turn: int = 16) -> ReadPlan:
    return plan_reads(needs(ranges), BLOCKS, FILES, piece_nbytes=piece, turn_nbytes=turn)


@st.composite
def one_range(draw: st.DrawFn) -> tuple[int, int, int, int]:
    """(rank, file, start, end)"""
    file = draw(st.integers(0, 2))
    start = draw(st.integers(0, int(FILES[file]) - 1))
    return draw(st.integers(0, 4)), file, start, draw(st.integers(start + 1, int(FILES[file])))


@given(st.lists(one_range(), max_size=12))
def test_every_needed_byte_is_read_once_by_one_who_needs_it(ranges: list[tuple[int, int, int, int]]) -> None:
    """Against brute force: nothing twice, nothing missing, and every rank gets all that it needs."""
    made = plan(ranges)
    read: dict[tuple[int, int], set[int]] = {}
    for i in range(made.file.size):
        wanted = set(made.wanted_by[made.first[i] : made.first[i] + made.count[i]].tolist())
        assert int(made.reader[i]) in wanted
        block = int(BLOCKS[made.file[i]])
        assert made.start[i] % block == 0
        assert made.end[i] % block == 0 or made.end[i] == FILES[made.file[i]]
        for byte in range(int(made.start[i]), int(made.end[i])):
            assert (int(made.file[i]), byte) not in read, "read twice"
            read[int(made.file[i]), byte] = wanted
    needed = {(file, byte) for _, file, start, end in ranges for byte in range(start, end)}
    assert made.needed_nbytes == len(needed)
    assert needed <= read.keys()
    for rank, file, start, end in ranges:
        assert all(rank in read[file, byte] for byte in range(start, end))
    # No block is read that no rank needs.
    assert {(f, b // BLOCKS[f]) for f, b in read} == {(f, b // BLOCKS[f]) for f, b in needed}


@given(st.lists(one_range(), min_size=1, max_size=12), st.integers(4, 40), st.integers(4, 40))
def test_pieces_and_rounds_keep_their_sizes(
    ranges: list[tuple[int, int, int, int]], piece: int, turn: int
) -> None:
    """A piece is one request, a round bounds the memory: both may exceed their limit by one block or piece only."""
    made = plan(ranges, piece, turn)
    sizes = made.end - made.start
    assert all(size <= max(piece, BLOCKS[file]) for size, file in zip(sizes, made.file, strict=True))
    for reader in set(made.reader.tolist()):
        for number in range(made.turns):
            mine = sizes[(made.reader == reader) & (made.turn == number)]
            assert mine.sum() < turn + sizes.max()


def test_identical_needs_are_split_evenly() -> None:
    """Four data-parallel ranks each read a quarter, of a large range as of many small ones."""
    large = plan_reads(
        needs([(rank, 0, 0, 4000) for rank in range(4)]),
        np.array([4]),
        np.array([4000]),
        piece_nbytes=400,
        turn_nbytes=400,
    )
    small = plan_reads(
        needs([(rank, 0, 8 * i, 8 * i + 4) for rank in range(4) for i in range(500)]),
        np.array([4]),
        np.array([4000]),
        piece_nbytes=400,
        turn_nbytes=400,
    )
    for made, total in ((large, 4000), (small, 2000)):
        sizes = made.end - made.start
        shares = [int(sizes[made.reader == rank].sum()) for rank in range(4)]
        assert sum(shares) == made.read_nbytes == made.needed_nbytes == total
        assert max(shares) - min(shares) <= 4


def test_shards_of_their_own_are_read_without_an_exchange() -> None:
    """Sharded state at the same parallelism."""
    made = plan([(0, 0, 0, 24), (1, 0, 24, 50)])
    assert not made.shared
    assert made.read_nbytes == 50


def test_nothing_needed_is_nothing_read() -> None:
    """A state without saved items."""
    assert plan([]).turns == 0


def test_ten_thousand_ranks_with_500_tensors_each_are_planned() -> None:
    """Replicas of eight, as in hybrid sharding; 5.1 million ranges."""
    ranks, tensors, copies = 10_240, 500, 8
    rank = np.repeat(np.arange(ranks), tensors)
    tensor = np.tile(np.arange(tensors), ranks)
    file = rank // copies
    many = Needs(rank, file, tensor * 1000, tensor * 1000 + 900)
    files = ranks // copies
    made = plan_reads(
        many,
        np.full(files, 1000),
        np.full(files, tensors * 1000),
        piece_nbytes=100_000,
        turn_nbytes=1_000_000,
    )
    assert made.needed_nbytes == files * tensors * 900
    assert made.read_nbytes == files * tensors * 1000

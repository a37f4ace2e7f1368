"""Distribution of the reads of a checkpoint in S3: rank 0 plans what all ranks need, and gives each rank its part."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from holdfast.storage.checkpoints.format.blocks import block_nbytes_for
from holdfast.storage.checkpoints.load.exchange import travels_as
from holdfast.storage.checkpoints.remote.manifests import ForeignFile, RemoteFile
from holdfast.storage.checkpoints.remote.read_plan import Needs, ReadPlan, plan_reads

PIECE_BYTES = 16 << 20
TURN_BYTES = 64 << 20


@travels_as("Orders")
@dataclass(frozen=True)
class ReadOrders:
    """One rank's part of the read plan. ``file`` counts the sources; parallel arrays, in order of the plan."""

    mine: np.ndarray[Any, np.dtype[np.int64]]
    """Rows (file, start, end, turn): pieces to read."""
    wanted: list[list[int]]
    """For each, the other ranks that need it."""
    coming: np.ndarray[Any, np.dtype[np.int64]]
    """Rows (file, start, end, turn, reader): pieces that others read for this rank."""
    turns: int
    exchange: bool


def block_nbytes(file: RemoteFile) -> int:
    """Size of the blocks whose digests are known; without them the whole file is one block, if it has a digest."""
    in_blocks = file.part or isinstance(file, ForeignFile)
    return block_nbytes_for(file.nbytes) if in_blocks else max(1, file.nbytes)


def deal(tables: list[Any], files: list[RemoteFile], size: int) -> list[tuple[ReadOrders, int]]:
    """Rank 0's work: everyone's part of the read plan."""
    rank = np.repeat(np.arange(size), [len(table) for table in tables])
    every = np.concatenate(tables)
    plan = plan_reads(
        Needs(rank, every[:, 0], every[:, 1], every[:, 2]),
        np.array([block_nbytes(file) for file in files], np.int64),
        np.array([file.nbytes for file in files], np.int64),
        piece_nbytes=PIECE_BYTES,
        turn_nbytes=TURN_BYTES,
    )
    table = np.stack([plan.file, plan.start, plan.end, plan.turn, plan.reader], axis=1)
    return [(each, plan.needed_nbytes) for each in _shares(plan, table, size)]


def _shares(plan: ReadPlan, table: np.ndarray[Any, np.dtype[np.int64]], size: int) -> Iterator[ReadOrders]:
    piece = np.repeat(np.arange(len(table)), plan.count)
    inside = np.arange(piece.size) - np.repeat(np.cumsum(plan.count) - plan.count, plan.count)
    wanting = plan.wanted_by[plan.first[piece] + inside] if piece.size else piece
    travels = wanting != plan.reader[piece]
    piece, wanting = piece[travels], wanting[travels]
    by_reader = np.argsort(plan.reader, kind="stable")
    by_wanting = np.lexsort((piece, wanting))
    readers = np.searchsorted(plan.reader[by_reader], np.arange(size + 1))
    wants = np.searchsorted(wanting[by_wanting], np.arange(size + 1))
    first = np.searchsorted(piece, np.arange(len(table) + 1))
    for rank in range(size):
        mine = np.sort(by_reader[readers[rank] : readers[rank + 1]])
        coming = piece[by_wanting[wants[rank] : wants[rank + 1]]]
        yield ReadOrders(
            mine=table[mine, :4],
            wanted=[wanting[first[each] : first[each + 1]].tolist() for each in mine],
            coming=table[coming],
            turns=plan.turns,
            exchange=plan.shared,
        )

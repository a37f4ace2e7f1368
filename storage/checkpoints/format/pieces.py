"""A rank's part of a checkpoint as several files, and a ``.metadata`` that knows them.

Files end where tensors end, so that one whose tensors did not change (frozen layers, experts that saw no
token) need not be stored again. The plan describes each rank's part as the one file ``__<rank>_0.distcp``;
here its entries are given the files that there are.
"""

from __future__ import annotations

import pickle
import re
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import BinaryIO

import numpy as np
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import Metadata

from holdfast.errors import CheckpointError
from holdfast.storage.checkpoints.format import boxes, metadata_pickle
from holdfast.storage.checkpoints.format.metadata_pickle import Table
from holdfast.storage.checkpoints.format.safe_metadata import load_metadata
from holdfast.storage.checkpoints.remote.manifests import PartFile

_PLANNED = re.compile(r"__(\d+)_0\.distcp$")


def split(metadata: bytes, owned_nbytes: int, least_nbytes: int) -> list[tuple[int, int]]:
    """Return spans ``(start, end)`` of the files of a rank's part: whole items, at least ``least_nbytes`` but the last.

    Args:
        metadata: of the shard file, which has the place of every item.
        owned_nbytes: size of the rank's part.
        least_nbytes: smaller files would cost too many requests.

    Raises:
        CheckpointError: the metadata is damaged.
    """
    places = (load_metadata(metadata, "shard").storage_data or {}).values()
    borders = [0]
    for offset in sorted({place.offset for place in places if place.offset < owned_nbytes}):
        if offset - borders[-1] >= least_nbytes:
            borders.append(offset)
    if len(borders) > 1 and owned_nbytes - borders[-1] < least_nbytes:
        borders.pop()
    return list(zip(borders, [*borders[1:], owned_nbytes], strict=True))


def relocate(metadata: bytes, parts: Mapping[int, Sequence[PartFile]]) -> bytes:
    """Return the global ``.metadata`` with each item in the file of its rank that has it.

    Args:
        metadata: as the plan wrote it.
        parts: for each rank its files, in order.

    Raises:
        CheckpointError: an item lies in no file, or the metadata is damaged.
    """
    starts = {rank: [part.start for part in files] for rank, files in parts.items()}

    def place(info: _StorageInfo) -> _StorageInfo:
        match = _PLANNED.match(info.relative_path)
        rank = int(match[1]) if match else -1
        if rank not in starts:
            raise CheckpointError(f".metadata names the file {info.relative_path}, which no rank uploaded")
        part = parts[rank][bisect_right(starts[rank], info.offset) - 1]
        offset = info.offset - part.start
        if offset + info.length > part.nbytes:
            raise CheckpointError(
                f"rank {rank}: an item of {info.length} bytes at {info.offset} crosses the end of {part.name}"
            )
        return _StorageInfo(part.name, offset, info.length, info.transform_descriptors)

    return _with_places(load_metadata(metadata), place)


def relocate_table(table: Table, parts: Sequence[Sequence[PartFile]]) -> Table:
    """Return a plan's boxes, each in the file of its rank that has it.

    Args:
        table: as the plan made it: file number r is all that rank r saves.
        parts: for each rank its files, in order.

    Raises:
        CheckpointError: a box lies in no file.
    """
    if len(table.files) != len(parts):
        raise CheckpointError(f"the plan is of {len(table.files)} ranks, {len(parts)} uploaded")
    rank = np.repeat(np.arange(len(parts)), [len(each) for each in parts])
    start = np.array([part.start for each in parts for part in each], np.int64)
    nbytes = np.array([part.nbytes for each in parts for part in each], np.int64)
    names = [part.name for each in parts for part in each]
    span = int(max(start.max(initial=0), table.at.max(initial=0))) + 1
    file = np.searchsorted(rank * span + start, table.file * span + table.at, side="right") - 1
    known = (file >= 0) & (rank[file] == table.file) if names else np.zeros(len(table.file), bool)
    at = table.at - start[file] if names else table.at
    bad = np.flatnonzero(~known)
    if len(bad):
        raise CheckpointError(f".metadata names a file of rank {table.file[bad[0]]}, which uploaded none")
    bad = np.flatnonzero(at + table.nbytes > nbytes[file])
    if len(bad):
        row = bad[0]
        raise CheckpointError(
            f"rank {table.file[row]}: an item of {table.nbytes[row]} bytes at {table.at[row]} crosses the end of "
            f"{names[file[row]]}"
        )
    return replace(table, files=names, file=file, at=at)


def publishable(compact: bytes, parts: Sequence[Sequence[PartFile]], stock: BinaryIO) -> bytes:
    """Return the compact metadata of a checkpoint made of ``parts``; the stock one is written to ``stock``.

    Args:
        compact: the plan's.
        parts: for each rank its files, in order.
        stock: gets what stock torch reads.

    Raises:
        CheckpointError: a box lies in no file, or the plan is damaged.
    """
    save_id = boxes.Boxes(compact, "plan").save_id
    planned = boxes.unpack(compact, [f"__{rank}_0.distcp" for rank in range(len(parts))], "plan")
    table = relocate_table(planned, parts)
    metadata_pickle.write(table, save_id, stock)
    return boxes.pack(table, save_id)


def write_stock(compact: bytes, files: Sequence[str], stock: BinaryIO) -> None:
    """Write the stock metadata that a compact one describes, its ``files`` by these names.

    Raises:
        CheckpointError: it is damaged, or of another number of files.
    """
    table = boxes.unpack(compact, files)
    metadata_pickle.write(table, boxes.Boxes(compact).save_id, stock)


def localise(metadata: bytes) -> bytes:
    """Return the ``.metadata`` of a checkpoint whose files, referenced ones included, lie in one folder."""

    def place(info: _StorageInfo) -> _StorageInfo:
        name = info.relative_path.rpartition("/")[2]
        return _StorageInfo(name, info.offset, info.length, info.transform_descriptors)

    return _with_places(load_metadata(metadata), place)


def _with_places(metadata: Metadata, place: Callable[[_StorageInfo], _StorageInfo]) -> bytes:
    metadata.storage_data = {index: place(info) for index, info in (metadata.storage_data or {}).items()}
    return pickle.dumps(metadata)

"""Where in the files of a checkpoint the bytes of an item lie, and how they become values again."""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.distributed._shard._utils import narrow_tensor_by_index
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlanner, ReadItem

from holdfast.errors import CheckpointError
from holdfast.storage.checkpoints.format.item_bytes import bytes_of
from holdfast.storage.checkpoints.format.layout import ZipForm, zip_form

Fetch = Callable[[int, int], bytes]
"""Bytes (start, end) of the item's file, when what was read first is not enough."""


@dataclass
class FileSpan:
    """A range of a file that an item needs, and the memory that takes it."""

    start: int
    end: int
    into: memoryview


@dataclass
class Located:
    """One item of a load plan with the ranges of the file that it needs."""

    item: ReadItem
    file: str
    spans: list[FileSpan]
    finish: Callable[[Fetch], None] = field(repr=False)
    missing: int = 0
    """Bytes that have not come yet."""

    def __post_init__(self) -> None:
        self.missing = sum(span.end - span.start for span in self.spans)


class Locator:
    """Finds the items of one checkpoint."""

    def __init__(self, metadata: Metadata, planner: LoadPlanner) -> None:
        self._metadata = metadata
        self._planner = planner
        self._chunks: dict[str, dict[torch.Size, ChunkStorageMetadata]] = {}

    def locate(self, item: ReadItem) -> Located:
        """Return the ranges that ``item`` needs: of a tensor whose form is known only what lies in its box."""
        info = self._metadata.storage_data[item.storage_index]
        if info.transform_descriptors:
            raise CheckpointError(
                f"{item.storage_index.fqn}: stored with the transforms {info.transform_descriptors}, which are "
                "not supported; load it with torch.distributed.checkpoint."
            )
        if item.type == LoadItemType.BYTE_IO:
            return self._object(item, info.relative_path, info.offset, info.length)
        chunk, dtype = self._chunk(item)
        form = zip_form(chunk.sizes, dtype)
        if form.nbytes != info.length:  # another torch wrote it: its head is of another size
            return self._whole_tensor(item, info.relative_path, info.offset, info.length)
        return self._part_of_tensor(item, info.relative_path, info.offset, chunk, form)

    def _chunk(self, item: ReadItem) -> tuple[ChunkStorageMetadata, torch.dtype]:
        name = item.storage_index.fqn
        known = self._metadata.state_dict_metadata[name]
        assert isinstance(known, TensorStorageMetadata)
        if name not in self._chunks:
            self._chunks[name] = {chunk.offsets: chunk for chunk in known.chunks}
        assert item.storage_index.offset is not None
        return self._chunks[name][item.storage_index.offset], known.properties.dtype

    def _object(self, item: ReadItem, file: str, offset: int, length: int) -> Located:
        content = bytearray(length)

        def finish(_: Fetch) -> None:
            self._planner.load_bytes(item, io.BytesIO(content))

        return Located(item, file, [FileSpan(offset, offset + length, memoryview(content))], finish)

    def _whole_tensor(self, item: ReadItem, file: str, offset: int, length: int) -> Located:
        content = bytearray(length)

        def finish(_: Fetch) -> None:
            self._put(item, _unpickled(content))

        return Located(item, file, [FileSpan(offset, offset + length, memoryview(content))], finish)

    def _part_of_tensor(
        self, item: ReadItem, file: str, offset: int, chunk: ChunkStorageMetadata, form: ZipForm
    ) -> Located:
        dtype = self._chunk(item)[1]
        head = bytearray(len(form.head))
        low, high = _bounds(chunk.sizes, item.storage_offsets, item.lengths)
        target = self._planner.resolve_tensor(item).detach()
        straight = (
            high - low == math.prod(item.lengths)
            and target.device.type == "cpu"
            and target.dtype == dtype
            and target.is_contiguous()
            and not (target.is_conj() or target.is_neg())
        )
        staging = target if straight else torch.empty(high - low, dtype=dtype, device="cpu")
        data_at = offset + len(form.head) + low * dtype.itemsize
        end = offset + len(form.head) + high * dtype.itemsize

        def finish(fetch: Fetch) -> None:
            if head != form.head:  # as long as ours but different: nothing is known about its content
                whole = _unpickled(bytearray(fetch(offset, offset + form.nbytes)))
                self._put(item, whole)
            elif straight:
                self._planner.commit_tensor(item, target)
            else:
                box = _strided(staging, chunk.sizes, low, item)
                target.copy_(box)
                self._planner.commit_tensor(item, target)

        spans = [FileSpan(offset, offset + len(head), memoryview(head))]
        if high > low:
            spans.append(FileSpan(data_at, end, bytes_of(staging)))
        return Located(item, file, spans, finish)

    def _put(self, item: ReadItem, saved: Tensor) -> None:
        target = self._planner.resolve_tensor(item).detach()
        target.copy_(narrow_tensor_by_index(saved, item.storage_offsets, item.lengths))
        self._planner.commit_tensor(item, target)


def _unpickled(content: bytearray) -> Tensor:
    tensor = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    if not isinstance(tensor, Tensor):
        raise CheckpointError(f"a {type(tensor).__name__} is saved where a tensor should be")
    return tensor


def _bounds(sizes: torch.Size, offsets: torch.Size, lengths: torch.Size) -> tuple[int, int]:
    """First element of a box in a row-major tensor of ``sizes``, and the one after its last."""
    if 0 in lengths:
        return 0, 0
    low = high = 0
    for size, offset, length in zip(sizes, offsets, lengths, strict=True):
        low, high = low * size + offset, high * size + offset + length - 1
    return low, high + 1


def _strided(staging: Tensor, sizes: torch.Size, low: int, item: ReadItem) -> Tensor:
    """Return the box of ``item`` in ``staging``, which begins at element ``low`` of a row-major tensor of ``sizes``."""
    strides = [math.prod(sizes[dim + 1 :]) for dim in range(len(sizes))]
    return staging.as_strided(tuple(item.lengths), strides, 0)

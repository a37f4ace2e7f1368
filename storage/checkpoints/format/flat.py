"""Flat one-dimensional shards that cut across tensors (ZeRO style), described as boxes of the original tensors.

A sharded optimizer often keeps all parameters in one flat buffer and gives each rank a range of it, wherever that
cuts the tensors. Such a range of an n-dimensional tensor, taken in row-major order, is at most 2n - 1 boxes, each
of them contiguous in the buffer; so it is saved and loaded in place, at any other number of ranks, without
gathering the tensor (ByteCheckpoint, arXiv 2407.20143, section 3.2: irregular tensor sharding).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorProperties
from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType

from holdfast.errors import CheckpointError


@dataclass(frozen=True)
class Box:
    """A box of a tensor whose elements follow one another in the flat range."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    at: int
    """Where it begins in the range, in elements."""

    @property
    def numel(self) -> int:
        """Elements in it."""
        return math.prod(self.sizes)


def boxes_of(shape: Sequence[int], start: int, stop: int) -> list[Box]:
    """Return the boxes that make up elements ``start`` to ``stop`` of a tensor in row-major order, in that order.

    Raises:
        CheckpointError: the range is not within the tensor.
    """
    if not 0 <= start <= stop <= math.prod(shape):
        raise CheckpointError(
            f"flat shard: elements {start} to {stop} of a tensor of shape {list(shape)} "
            f"({math.prod(shape)} elements): expected a range within it"
        )
    return list(_boxes(tuple(shape), (), start, stop, 0)) if start < stop else []


def _boxes(shape: tuple[int, ...], before: tuple[int, ...], start: int, stop: int, at: int) -> Iterator[Box]:
    """Yield the boxes of a range of the slice at index ``before`` of the outer dimensions."""
    ones = (1,) * len(before)
    if not shape:
        yield Box(before, ones, at)
        return
    row = math.prod(shape[1:])
    first, last = -(-start // row), stop // row
    if first > last:  # within one row
        yield from _boxes(shape[1:], (*before, last), start - last * row, stop - last * row, at)
        return
    if start < first * row:
        yield from _boxes(shape[1:], (*before, first - 1), start - (first - 1) * row, row, at)
        at += first * row - start
    if first < last:
        yield Box((*before, first, *(0 for _ in shape[1:])), (*ones, last - first, *shape[1:]), at)
        at += (last - first) * row
    if last * row < stop:
        yield from _boxes(shape[1:], (*before, last), 0, stop - last * row, at)


class FlatShard(Tensor):
    """A range of a tensor, held in a flat one; for state dictionaries, not for computing with.

    It follows torch's protocol for tensors that describe their own parts, so that stock ``dcp.save`` and
    ``dcp.load`` take it as well: a load fills the flat tensor in place.
    """

    local: Tensor
    """[stop - start] the elements that this rank holds; contiguous."""
    boxes: list[Box]

    @staticmethod
    def __new__(cls, local: Tensor, shape: Sequence[int], start: int) -> FlatShard:
        """Return the elements ``start`` and following of a tensor of ``shape``.

        Raises:
            CheckpointError: ``local`` is not flat and contiguous, or goes beyond the tensor.
        """
        if local.dim() != 1 or not local.is_contiguous():
            raise CheckpointError(
                f"flat shard: a tensor of shape {list(local.shape)}, expected a contiguous one-dimensional one"
            )
        made: FlatShard = Tensor._make_wrapper_subclass(
            cls, torch.Size(shape), dtype=local.dtype, device=local.device
        )
        made.local = local.detach()
        made.boxes = boxes_of(shape, start, start + local.numel())
        return made

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        """Return its range in words."""
        return f"FlatShard({self.local.numel()} of {list(self.shape)})"

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Refuse every computation; torch may only detach it."""
        if func is torch.ops.aten.detach.default:
            return args[0]
        raise NotImplementedError(f"{func}: a FlatShard only describes a part of a tensor; use its `local`")

    def __create_write_items__(self, fqn: str, _object: Any) -> list[WriteItem]:
        return [
            WriteItem(
                MetadataIndex(fqn, box.offsets),
                WriteItemType.SHARD,
                tensor_data=TensorWriteData(
                    ChunkStorageMetadata(torch.Size(box.offsets), torch.Size(box.sizes)),
                    TensorProperties.create_from_tensor(self.local),
                    self.shape,
                ),
            )
            for box in self.boxes
        ]

    def __create_chunk_list__(self) -> list[ChunkStorageMetadata]:
        return [ChunkStorageMetadata(torch.Size(box.offsets), torch.Size(box.sizes)) for box in self.boxes]

    def __get_tensor_shard__(self, index: MetadataIndex) -> Tensor:
        for box in self.boxes:
            if box.offsets == index.offset:
                return self.local[box.at : box.at + box.numel].view(box.sizes)
        raise ValueError(f"{index.fqn}: this rank's range has no box at {index.offset}")


def flat_shards(
    shapes: Mapping[str, Sequence[int]], local: Tensor, start: int, prefix: str = ""
) -> dict[str, FlatShard]:
    """Describe a rank's range of a flat buffer in which all tensors lie one behind the other.

    Args:
        shapes: name to shape of each tensor, in the buffer's order. Padding at the end belongs to no tensor.
        local: this rank's range of the buffer, flat and contiguous.
        start: where it begins in the buffer, in elements.
        prefix: put before each name.

    Returns:
        Name to part, for the tensors that the range touches: to be put into a state dictionary.
    """
    parts: dict[str, FlatShard] = {}
    stop, begin = start + local.numel(), 0
    for name, shape in shapes.items():
        end = begin + math.prod(shape)
        low, high = max(start, begin), min(stop, end)
        if low < high:
            parts[prefix + name] = FlatShard(local[low - start : high - start], shape, low - begin)
        begin = end
    return parts

"""Tensors without content of the sizes, types and boxes that a file holds, to load it into; a few at a time.

Nothing of the training script is needed: what a rank holds of a tensor is a set of boxes, whatever made them (a
DTensor, a flat shard, a plain tensor), and a load only ever fills boxes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    MetadataIndex,
    TensorStorageMetadata,
)

GROUP_BYTES = 256 << 20
"""Loaded at a time: a rehearsal takes about so much memory beside the training, however large the state."""


@dataclass(frozen=True)
class LoadedBox:
    """Part of a tensor that is loaded as one."""

    fqn: str
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    dtype: torch.dtype

    @property
    def nbytes(self) -> int:
        """Of its elements."""
        return math.prod(self.sizes) * self.dtype.itemsize

    def rows(self, most_bytes: int) -> Iterator[LoadedBox]:
        """Yield the box in parts along its first dimension of at most this many bytes, or of one row each."""
        if self.nbytes <= most_bytes or not self.sizes:
            yield self
            return
        count = max(1, most_bytes * self.sizes[0] // self.nbytes)
        for start in range(0, self.sizes[0], count):
            high = min(count, self.sizes[0] - start)
            offsets = (self.offsets[0] + start, *self.offsets[1:])
            yield LoadedBox(self.fqn, offsets, (high, *self.sizes[1:]), self.dtype)


class EmptyBoxes(Tensor):
    """Some boxes of one tensor, for a load to fill; follows torch's protocol for tensors that describe their parts."""

    parts: dict[tuple[int, ...], Tensor]
    """By their offsets."""

    @staticmethod
    def __new__(cls, known: TensorStorageMetadata, boxes: Iterable[LoadedBox]) -> EmptyBoxes:
        """Room for ``boxes`` of the tensor that ``known`` describes."""
        made: EmptyBoxes = Tensor._make_wrapper_subclass(cls, known.size, dtype=known.properties.dtype)
        made.parts = {box.offsets: torch.empty(box.sizes, dtype=box.dtype, device="cpu") for box in boxes}
        return made

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        """Return the number of boxes in words."""
        return f"EmptyBoxes({len(self.parts)} of {list(self.shape)})"

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Refuse every computation; torch may only detach it."""
        if func is torch.ops.aten.detach.default:
            return args[0]
        raise NotImplementedError(f"{func}: EmptyBoxes are only loaded into")

    def __create_chunk_list__(self) -> list[ChunkStorageMetadata]:
        return [ChunkStorageMetadata(torch.Size(offsets), part.shape) for offsets, part in self.parts.items()]

    def __get_tensor_shard__(self, index: MetadataIndex) -> Tensor:
        assert index.offset is not None
        return self.parts[tuple(index.offset)]


def groups(boxes: Sequence[LoadedBox], most_bytes: int = GROUP_BYTES) -> Iterator[list[LoadedBox]]:
    """Yield the boxes, large ones cut by rows, in groups of about ``most_bytes``."""
    group: list[LoadedBox] = []
    nbytes = 0
    for part in (part for box in boxes for part in box.rows(most_bytes)):
        if group and nbytes + part.nbytes > most_bytes:
            yield group
            group, nbytes = [], 0
        group.append(part)
        nbytes += part.nbytes
    if group:
        yield group

"""Descriptions of a job's state at full size, to time the global plan: no tensors, no processes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch.distributed.checkpoint.metadata import TensorProperties

from holdfast.storage.checkpoints.format.describe import Description, ItemKind, Outline
from holdfast.storage.checkpoints.format.sharing import Ints

RANKS, TENSORS, RANKS_PER_MACHINE = 10_240, 500, 8
_WIDTH = 10_240  # rows of every tensor: one or more for each rank

Described = tuple[list[Description], dict[str, Outline]]


def sharded(ranks: int = RANKS, tensors: int = TENSORS) -> Described:
    """FSDP over all ranks: every box differs."""
    return _described(ranks, tensors, shards=ranks, stages=1)


def sharded_with_own(ranks: int = RANKS, tensors: int = TENSORS) -> Described:
    """FSDP, and on each rank what it alone has: its structure and its random state."""
    described, outlines = sharded(ranks, tensors)
    return [_with_own(each, rank) for rank, each in enumerate(described)], outlines


def replicated(ranks: int = RANKS, tensors: int = TENSORS) -> Described:
    """Plain data parallelism: all ranks hold the same."""
    return _described(ranks, tensors, shards=1, stages=1)


def three_dimensional(ranks: int = RANKS, tensors: int = TENSORS) -> Described:
    """Tensor parallel 8, pipeline 16, data parallel the rest, replicated."""
    return _described(ranks, tensors, shards=8, stages=16)


def _described(ranks: int, tensors: int, shards: int, stages: int) -> Described:
    properties = TensorProperties(torch.bfloat16)
    outlines = [
        Outline(
            tuple(
                ItemKind(f"model.stage{stage}.layers.{number}.weight", torch.Size((_WIDTH, 64)), properties)
                for number in range(tensors)
            ),
            {
                f"model.stage{stage}.layers.{number}.weight": (
                    "model",
                    f"stage{stage}.layers.{number}.weight",
                )
                for number in range(tensors)
            },
        )
        for stage in range(stages)
    ]
    digests = [outline.digest() for outline in outlines]
    boxes = [_boxes(tensors, shard, shards) for shard in range(shards)]
    nothing = Outline((), {})
    return [
        Description(
            machine=f"m{rank // RANKS_PER_MACHINE}",
            digest=digests[rank // shards % stages],
            private=nothing,
            boxes=boxes[rank % shards].copy(),
            row_nbytes=np.full(tensors, 64 * 2, np.int64),
            contents=np.zeros(tensors, np.int64),
        )
        for rank in range(ranks)
    ], dict(zip(digests, outlines, strict=True))


def _boxes(tensors: int, shard: int, shards: int) -> Ints:
    boxes = np.zeros((tensors, 2, 2), np.int64)
    boxes[:, 0, 0] = shard * (_WIDTH // shards)
    boxes[:, 1] = _WIDTH // shards, 64
    return boxes


def _with_own(description: Description, rank: int) -> Description:
    """Four objects and a tensor beside what is shared."""
    names = [
        *(f"structure/{rank}.{part}" for part in ("model", "optimizer")),
        *(f"rng/{rank}.{kind}" for kind in ("python", "numpy", "torch")),
    ]
    random = ItemKind(names[-1], torch.Size((5056,)), TensorProperties(torch.uint8))
    boxes = np.zeros((len(names), 2, 2), np.int64)
    boxes[:, 1] = 1
    boxes[-1, 1, 0] = 5056
    return replace(
        description,
        private=Outline(
            (*map(ItemKind, names[:-1]), random), {name: tuple(name.split(".")) for name in names}
        ),
        boxes=np.concatenate([description.boxes, boxes]),
        row_nbytes=np.append(description.row_nbytes, [64 << 10, 128 << 10, 8192, 8192, 1]),
        contents=np.append(description.contents, [1, 2, 3, 4, 0]),
    )

"""Saves of one epoch: all ranks decide together, then each copies its own state."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from pathlib import Path
from typing import Any

import torch
from torch import distributed as dist

from holdfast.errors import CheckpointError
from holdfast.session import rng
from holdfast.session.context import Context
from holdfast.session.state import StateTree
from holdfast.storage.checkpoints.plan import make_plan
from holdfast.storage.checkpoints.writer import Owner, ShardWriter


class Need(IntEnum):
    """What a save needs; the largest need of any rank counts for all."""

    COPY = 0
    PLAN = 1
    SKIP = 2


class Saver:
    """Writes this rank's shards. Every method that saves is collective."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._tree: StateTree | None = None
        self._writer: ShardWriter | None = None
        self._plans = 0

    def save(self, state: Mapping[str, Any], step: int, *, good: bool) -> Path | None:
        """Save ``state`` as that of ``step``; None when any rank's step was not ``good`` (not finite).

        The exchange of needs is a barrier as well: no rank overwrites its shard of step s-2 before all ranks
        have saved step s-1, so that a common step always exists.
        """
        tree = self._tree_of(state)
        items = tree.flat() | {
            f"{rng.key(self._context.rank)}.{name}": each for name, each in rng.capture().items()
        }
        contents = self._writer.collect(items) if self._writer else None
        need = Need.SKIP if not good else Need.PLAN if contents is None else Need.COPY
        need = agree(need)
        if need == Need.SKIP:
            return None
        if need == Need.PLAN:
            self._writer = self._plan(tree)
            contents = self._writer.collect(items)
        if self._writer is None or contents is None:
            raise CheckpointError(
                f"rank {self._context.rank} at step {step}: the state changes between two looks at it. "
                "Give Session.checkpoint() objects whose state_dict() does not change by being called."
            )
        return self._writer.save(contents, step)

    def _tree_of(self, state: Mapping[str, Any]) -> StateTree:
        if self._tree is None or not self._tree.same(state):
            self._tree = StateTree(state)
        return self._tree

    def _plan(self, tree: StateTree) -> ShardWriter:
        context = self._context
        self._plans += 1
        nested = tree.nested() | {rng.key(context.rank): rng.capture()}
        layout = make_plan(nested, context.shards, context.epoch, self._plans)
        owner = Owner(context.job, context.epoch, context.rank, context.world_size)
        return ShardWriter(layout, owner, context.shards)


def agree(need: Need) -> Need:
    """The largest need of all ranks."""
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return need
    device = "cpu" if "cpu:" in dist.get_backend_config() else "cuda"
    flag = torch.tensor([int(need)], dtype=torch.int32, device=device)
    dist.all_reduce(flag, op=dist.ReduceOp.MAX)
    return Need(int(flag.item()))

"""Bytes between ranks over the process group, in rounds of ``all_to_all``."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


class Exchange:
    """The ranks that load a checkpoint together; alone it is one rank that keeps what it has.

    Every method is collective. Objects that travel come from ranks of the same job, over the job's own group.
    """

    def __init__(self, *, alone: bool) -> None:
        """Over the default process group; ``alone``: over none."""
        self.rank, self.size = 0, 1
        self._group: dist.ProcessGroup | None = None
        if not alone and dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
            # Bytes lie in host memory: a group that only has devices gets one beside it that has CPUs.
            on_host = "cpu" in dist.get_backend_config() or dist.get_backend() == "gloo"
            self._group = dist.group.WORLD if on_host else dist.new_group(backend="gloo")
            self.rank, self.size = dist.get_rank(), dist.get_world_size()

    def broadcast(self, value: Any) -> Any:
        """Rank 0's ``value`` on every rank."""
        if self._group is None:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=0, group=self._group, device=torch.device("cpu"))
        return box[0]

    def gather(self, value: Any) -> list[Any] | None:
        """Every rank's ``value`` on rank 0, in order; None elsewhere."""
        if self._group is None:
            return [value]
        into: list[Any] | None = [None] * self.size if self.rank == 0 else None
        dist.gather_object(value, into, dst=0, group=self._group)
        return into

    def everywhere(self, value: Any) -> list[Any]:
        """Every rank's ``value`` on every rank, in order."""
        if self._group is None:
            return [value]
        into: list[Any] = [None] * self.size
        dist.all_gather_object(into, value, group=self._group)
        return into

    def scatter(self, values: Sequence[Any] | None) -> Any:
        """To each rank its own of rank 0's ``values``.

        Pickled here, so that large ones are not padded to the largest and sent to everybody.
        """
        if self._group is None:
            assert values is not None
            return values[0]
        sizes = torch.zeros(self.size, dtype=torch.int64)
        packed: list[bytes] = []
        if self.rank == 0:
            assert values is not None
            packed = [pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL) for value in values]
            sizes = torch.tensor([len(each) for each in packed], dtype=torch.int64)
        dist.broadcast(sizes, src=0, group=self._group)
        counts = [len(each) for each in packed] or [0] * self.size
        outgoing = torch.frombuffer(bytearray(b"".join(packed) or b"-"), dtype=torch.uint8)
        got = torch.empty(int(sizes[self.rank]), dtype=torch.uint8)
        self.swap(outgoing[: sum(counts)], counts, got, [len(got)] + [0] * (self.size - 1))
        return pickle.loads(got.numpy().data)

    def any(self, flag: bool) -> bool:
        """Whether ``flag`` is set on any rank."""
        if self._group is None:
            return flag
        told = torch.tensor([int(flag)], dtype=torch.int32)
        dist.all_reduce(told, op=dist.ReduceOp.MAX, group=self._group)
        return bool(told.item())

    def sums(self, values: Sequence[int]) -> list[int]:
        """The sums of all ranks' ``values``."""
        if self._group is None:
            return list(values)
        total = torch.tensor(list(values), dtype=torch.int64)
        dist.all_reduce(total, group=self._group)
        return [int(each) for each in total]

    def swap(
        self, outgoing: Tensor, counts: Sequence[int], incoming: Tensor, receives: Sequence[int]
    ) -> None:
        """Send each rank its part of ``outgoing``, and take the others' into ``incoming``.

        Args:
            outgoing: bytes for rank 0, then for rank 1, and so on.
            counts: how many for each.
            incoming: filled with what comes, by rank.
            receives: how many come from each.
        """
        dist.all_to_all_single(incoming, outgoing, list(receives), list(counts), group=self._group)

"""Bytes between ranks over the process group, in rounds of ``all_to_all``."""

from __future__ import annotations

import copy
import pickle
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException

from holdfast.errors import CheckpointError, DamagedError, HoldfastError, UncoveredError

FAILURES = (
    HoldfastError,
    CheckpointException,
    OSError,
    RuntimeError,
    ValueError,
    TypeError,
    EOFError,
    KeyError,
    AssertionError,
)
"""Errors that torch and Python raise for a checkpoint that does not fit."""


Kind = TypeVar("Kind")


def travels_as(name: str) -> Callable[[type[Kind]], type[Kind]]:
    """Have objects of a class travel between ranks under the ``name`` that the release before has for it.

    Ranks look each other's classes up by name, and machines are brought up to date one by one while a job runs.
    """

    def named(kind: type[Kind]) -> type[Kind]:
        kind.__qualname__ = name
        setattr(sys.modules[kind.__module__], name, kind)
        return kind

    return named


# A group of Gloo's whose last collective was one of these must not be destroyed together with a DDP module (see
# holdfast.session.agreement): its creator keeps the group.
_kept: dict[Any, dist.ProcessGroup] = {}


def and_more(failed: Sequence[object]) -> str:
    """Return the end of a message about the first of those ranks that failed."""
    return f" (and {len(failed) - 1} more of the ranks failed)" if len(failed) > 1 else ""


class Exchange:
    """The ranks that load a checkpoint together; alone it is one rank that keeps what it has.

    Every method is collective. Objects that travel come from ranks of the same job, over the job's own group.
    """

    def __init__(self, *, alone: bool) -> None:
        """Over the default process group; ``alone``: over none."""
        self.rank, self.size = 0, 1
        self._together = False
        if not alone and dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
            self._together = True
            self.rank, self.size = dist.get_rank(), dist.get_world_size()

    @property
    def _group(self) -> dist.ProcessGroup | None:
        """Where bytes in host memory travel: a group that only has devices gets one beside it that has CPUs."""
        if not self._together:
            return None
        world = dist.group.WORLD
        if world not in _kept:
            _kept.clear()
            made = world if _on_host() else dist.new_group(backend="gloo")
            assert made is not None
            _kept[world] = made
        return _kept[world]

    def broadcast(self, value: Any) -> Any:
        """Rank 0's ``value`` on every rank."""
        if self._group is None:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=0, group=self._group, device=torch.device("cpu"))
        return box[0]

    def gather(self, value: Any) -> list[Any] | None:
        """Return every rank's ``value`` on rank 0, in order; None elsewhere."""
        if self._group is None:
            return [value]
        into: list[Any] | None = [None] * self.size if self.rank == 0 else None
        dist.gather_object(value, into, dst=0, group=self._group)
        return into

    def everywhere(self, value: Any) -> list[Any]:
        """Return every rank's ``value`` on every rank, in order."""
        if self._group is None:
            return [value]
        into: list[Any] = [None] * self.size
        dist.all_gather_object(into, value, group=self._group)
        return into

    def scatter(self, values: Sequence[Any] | None) -> Any:
        """To each rank its own of rank 0's ``values``.

        Pickled here, so that large ones are not padded to the largest and sent to all ranks.
        """
        if self._group is None:
            assert values is not None
            return values[0]
        sizes = torch.zeros(self.size, dtype=torch.int64, device="cpu")
        packed: list[bytes] = []
        if self.rank == 0:
            assert values is not None
            packed = [pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL) for value in values]
            sizes = torch.tensor([len(each) for each in packed], dtype=torch.int64, device="cpu")
        dist.broadcast(sizes, src=0, group=self._group)
        counts = [len(each) for each in packed] or [0] * self.size
        outgoing = torch.frombuffer(bytearray(b"".join(packed) or b"-"), dtype=torch.uint8)
        got = torch.empty(int(sizes[self.rank]), dtype=torch.uint8, device="cpu")
        self.swap(outgoing[: sum(counts)], counts, got, [len(got)] + [0] * (self.size - 1))
        return pickle.loads(got.numpy().data)

    def any(self, flag: bool) -> bool:
        """Return whether ``flag`` is set on any rank. The fastest exchange: it makes no group."""
        return bool(self.largest(int(flag)))

    def largest(self, value: int) -> int:
        """Return the largest of all ranks' values."""
        if not self._together:
            return value
        largest = torch.tensor([value], dtype=torch.int64, device="cpu" if _on_host() else own_device())
        dist.all_reduce(largest, op=dist.ReduceOp.MAX, group=self._group if _on_host() else None)
        return int(largest.item())

    def agree(self, trouble: HoldfastError | None) -> None:
        """Raise on every rank when any has ``trouble``; one small exchange when none has.

        All of them raise the gravest of the errors: damage, then what does not fit, then what is not covered.
        """
        if not self.any(trouble is not None):
            return
        troubles = [(rank, each) for rank, each in enumerate(self.everywhere(trouble)) if each is not None]
        rank, first = min(troubles, key=lambda each: _gravity(each[1]))
        if self.size > 1:
            first = copy.copy(first)
            first.args = (f"rank {rank}: {first}{and_more(troubles)}",)
        raise first from trouble

    @contextmanager
    def together(self, name: str) -> Iterator[None]:
        """Guard a block that may fail on one rank before the ranks go on: then every rank raises, and none waits.

        Args:
            name: of what is loaded, for errors that do not contain it.
        """
        trouble: HoldfastError | None = None
        try:
            yield
        except FAILURES as error:
            trouble = as_trouble(error, name)
        self.agree(trouble)

    def sums(self, values: Sequence[int]) -> list[int]:
        """Return the sums of all ranks' ``values``."""
        if self._group is None:
            return list(values)
        total = torch.tensor(list(values), dtype=torch.int64, device="cpu")
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
        if self._group is None:
            incoming.copy_(outgoing)
            return
        dist.all_to_all_single(incoming, outgoing, list(receives), list(counts), group=self._group)

    def deal(self, parts: Sequence[bytes]) -> list[bytes]:
        """Send each rank its own of this rank's ``parts``; what each rank sent to this one, in order."""
        if self._group is None:
            return list(parts)
        counts = torch.tensor([len(each) for each in parts], dtype=torch.int64, device="cpu")
        receives = torch.empty_like(counts)
        dist.all_to_all_single(receives, counts, group=self._group)
        outgoing = torch.frombuffer(bytearray(b"".join(parts) + b"-"), dtype=torch.uint8)[:-1]
        incoming = torch.empty(int(receives.sum()), dtype=torch.uint8, device="cpu")
        self.swap(outgoing, counts.tolist(), incoming, receives.tolist())
        return [bytes(each.numpy()) for each in torch.split(incoming, receives.tolist())]


class Ballot:
    """One agreement of the ranks: each takes part before it copies a byte to a tensor, at the latest at the end."""

    def __init__(self, exchange: Exchange, name: str) -> None:
        """Vote on loading ``name``, which is put into errors that do not contain it."""
        self._exchange, self._name = exchange, name
        self._cast = False

    def cast(self, trouble: HoldfastError | None = None) -> None:
        """Report to the other ranks, on the first call only, whether this rank can go on.

        Raises:
            HoldfastError: some rank cannot; on all.
        """
        if not self._cast:
            self._cast = True
            self._exchange.agree(trouble)

    @contextmanager
    def open(self) -> Iterator[None]:
        """Around the load. What fails after the agreement fails on this rank alone."""
        try:
            yield
        except FAILURES as error:
            if not self._cast:
                self.cast(as_trouble(error, self._name))
            raise
        self.cast()


def as_trouble(error: BaseException, name: str) -> HoldfastError:
    """Convert any error to one of ours."""
    if isinstance(error, HoldfastError):
        return error
    made = CheckpointError(f"{name}: {first_line(error)}")
    made.__cause__ = error
    return made


def first_line(error: BaseException) -> str:
    """Return the beginning of an error's message."""
    return str(error).splitlines()[0].rstrip(".") if str(error) else type(error).__name__


def _on_host() -> bool:
    return "cpu" in dist.get_backend_config() or dist.get_backend() == "gloo"


def own_device() -> torch.device:
    """Return the GPU that the group was made for, else the current one: a script sets one or the other."""
    world = dist.group.WORLD if dist.is_available() else None
    bound: torch.device | None = getattr(world, "bound_device_id", None)
    return bound or torch.device("cuda")


def _gravity(error: HoldfastError) -> int:
    kinds = (DamagedError, UncoveredError)
    return 0 if isinstance(error, kinds[0]) else 2 if isinstance(error, kinds[1]) else 1

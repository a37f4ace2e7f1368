"""Which tensors of a save are copied at once, which while training computes on, and how: kept from save to save."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import itemgetter

from torch import Tensor

from holdfast.storage.checkpoints.save.glance import identical
from holdfast.storage.checkpoints.save.transfer import Route, TensorMove


@dataclass(frozen=True)
class SteadyTensors:
    """The tensors that stay unchanged until a save declares that they may change; the others are copied at once."""

    updated: frozenset[int] | None = None
    """Addresses of those that only an optimizer changes, which waits; None: all wait."""
    changing: frozenset[str] = frozenset()
    """Names of those that nevertheless changed once."""

    def __call__(self, name: str, tensor: Tensor) -> bool:
        """Return whether the tensor of this name is one."""
        return name not in self.changing and (self.updated is None or tensor.data_ptr() in self.updated)


ALL_STEADY = SteadyTensors()


@dataclass(frozen=True)
class CopyTarget:
    """The place that a tensor is copied to."""

    name: str
    view: Tensor
    """Of the shard file."""
    offset: int
    """There."""


class Prepared:
    """Prepared copies of tensors to their targets, run at every save."""

    def __init__(self, targets: Sequence[CopyTarget], tensors: list[Tensor], steady: SteadyTensors) -> None:
        """Prepare copies of ``tensors``, in the order of ``targets``."""
        self._targets, self._tensors, self._steady = targets, tensors, steady
        self.names: list[str] = []
        """Of the steady ones, in the order of the route."""
        moves: list[TensorMove] = []
        later: list[int] = []
        self._at_once: list[int] = []
        for number, (target, source) in enumerate(zip(targets, tensors, strict=True)):
            if steady(target.name, source):
                moves.append(TensorMove(source, target.view, target.offset))
                self.names.append(target.name)
                later.append(number)
            else:
                self._at_once.append(number)
        self._later = _picking(later)
        self.route = Route(moves)

    def holds(self, tensors: list[Tensor], steady: SteadyTensors) -> bool:
        """Return whether it holds for ``tensors``, in the same order, as well. Those copied at once may be others."""
        if steady != self._steady:
            return False
        if tensors is self._tensors:
            return True
        return identical(self._later(tensors), self._later(self._tensors))

    def at_once(self, tensors: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """Return the targets and sources of what is copied at once."""
        return [self._targets[number].view for number in self._at_once], [
            tensors[number] for number in self._at_once
        ]


def _picking(numbers: Sequence[int]) -> Callable[[list[Tensor]], Sequence[Tensor]]:
    """Return a function that takes those of the ``numbers`` out of a list."""
    if len(numbers) < 2:
        return lambda tensors: [tensors[number] for number in numbers]
    return itemgetter(*numbers)

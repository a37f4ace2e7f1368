"""Stand-ins for the objects of a checkpoint, while their reading is played."""

from __future__ import annotations

import math
from typing import Any, Protocol

from holdfast.bounded_pickle import MaliciousPickleError

LONGEST_TEXT = 4096
"""Characters of a path, and of a NumPy type."""


class StandIn:
    """Stands for something made that is of no further interest."""


class StorageStandIn(StandIn):
    """Stands for the memory of a tensor."""

    def __init__(self, elements: int, itemsize: int) -> None:
        self.elements, self.itemsize = elements, itemsize


class TensorStandIn(StandIn):
    """Stands for a tensor, which may claim more elements than its memory has: views overlap."""

    def __init__(self, elements: int) -> None:
        self.elements = elements


class NumpyTypeStandIn(StandIn):
    """A NumPy type, by the bytes of an element."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes


class Spender(Protocol):
    """The used part of what plays an object."""

    filled: bool
    """Whether memory of tensors is read before the tensors are made, as from archives."""

    def spend(self, nbytes: int) -> None:
        """Count memory that is taken without bytes to explain it."""
        ...


def thing(*_: Any) -> StandIn:
    """Make anything."""
    return StandIn()


def nothing(_: Any, __: Any) -> None:
    """Take any state."""


def product(sizes: Any) -> int:
    """Return how many elements a tensor or an array of these sizes has."""
    if not isinstance(sizes, tuple) or not all(type(each) is int and each >= 0 for each in sizes):
        raise MaliciousPickleError("it has a size that is no row of numbers: refused")
    return math.prod(sizes)

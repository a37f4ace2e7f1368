"""One part of the state in the form in which it is saved."""

from __future__ import annotations

from collections.abc import Iterator, Set
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from holdfast.storage.checkpoints.format.encoder import Encoder, Place
from holdfast.storage.checkpoints.format.places import Path, dotted
from holdfast.storage.checkpoints.format.structure import own_name
from holdfast.storage.checkpoints.format.tensor_facts import is_distributed, nbytes_of

SMALL_BYTES = 64 << 10
"""Tensors of a part that is neither module nor optimizer lie in its tree up to this size."""


@dataclass
class Encoded:
    """A part of the state, ready to be planned or copied."""

    nodes: dict[str, Any]
    """Its trees by name: what ``structure/<rank>`` holds."""
    items: dict[str, Any]
    """Tensors and plain values by the names that stock torch reads them by."""
    paths: dict[str, Path]
    inlined: bool = False
    """Whether elements of a tensor lie in its trees: then it is out of date as soon as they change."""

    @classmethod
    def by(cls, encoder: Encoder, nodes: dict[str, Any], *, stock: bool = True) -> Encoded:
        """Return what ``encoder`` has collected; ``stock``: plain values also under names of their own."""
        items = encoder.items | encoder.stock.values if stock else encoder.items
        paths = {name: encoder.paths[name] for name in items}
        return cls(nodes, items, paths, inlined=encoder.inlined)


@dataclass
class Placing:
    """Where tensors go that may change their shape, or differ from rank to rank."""

    rank: int = 0
    alone: bool = True
    """Whether there is no other rank to share anything with."""
    loose: set[str] = field(default_factory=set)
    """Names of tensors that changed their shape or type, or overlapped, once: from then on they lie in the tree."""
    shared: set[str] = field(default_factory=set)
    """Names of large tensors that were found equal on all ranks: saved once."""
    candidates: dict[str, Tensor] = field(default_factory=dict)
    """Large tensors by name, of which the ranks have to find out whether they are equal."""
    apart: set[str] = field(default_factory=set)
    """Names of buffers that are not equal on all ranks, where another rank has the plain name."""
    unequal: set[str] = field(default_factory=set)
    """Names of items that were ever found unequal."""
    replicated: list[tuple[str, ...]] = field(default_factory=list)
    """Names of items that are saved once and have to stay equal: :data:`~holdfast.session.shared.Replicated`."""
    _shapes: dict[str, tuple[Any, ...]] = field(default_factory=dict)

    def module(self) -> Place:
        """Return a module's place: all is an item under its own name, unless it changes shape or is this rank's own."""

        def place(path: Path, tensor: Tensor) -> str | None:
            name = dotted(path)
            if self._moves(name, tensor):
                return None
            return own_name(self.rank, name) if name in self.apart else name

        return place

    def optimizer(self, parts: Set[str] = frozenset()) -> Place:
        """Return an optimizer's place: a parameter's direct state is an item; histories in lists lie in the tree.

        ``parts``: names of parameters of which this rank has a part. What is not distributed beside them may be of that
        part, or the same on all ranks: then it is saved once.
        """

        def place(path: Path, tensor: Tensor) -> str | None:
            name = dotted(path)
            if is_distributed(tensor):
                return name
            deep = len(path) > 4 and any(isinstance(each, int) for each in path[3:])
            if deep or self._moves(name, tensor):
                return None
            if self.alone or not tensor.dim() or path[2] not in parts:
                return name
            self.candidates[name] = tensor
            return name if name in self.shared else own_name(self.rank, name)

        return place

    def other(self) -> Place:
        """Return the place of all else: small tensors lie in the tree; ranks share large ones where they are equal."""

        def place(path: Path, tensor: Tensor) -> str | None:
            name = dotted(path)
            if is_distributed(tensor):
                return name
            if nbytes_of(tensor) <= SMALL_BYTES or self._moves(name, tensor):
                return None
            self.candidates[name] = tensor
            return name if self.alone or name in self.shared else own_name(self.rank, name)

        return place

    def _moves(self, name: str, tensor: Tensor) -> bool:
        if name in self.loose:
            return True
        if is_distributed(tensor):
            return False
        now = (tuple(tensor.shape), tensor.dtype)
        if self._shapes.setdefault(name, now) == now:
            return False
        self.loose.add(name)
        return True


def local(tensor: Tensor) -> Tensor:
    """Return this rank's part of a distributed tensor."""
    found: Tensor = getattr(tensor, "_local_tensor", tensor)
    return found


def addresses(tensor: Tensor) -> Iterator[tuple[int, int]]:
    """Yield address and elements of each plain tensor that ``tensor`` consists of."""
    held = local(tensor)
    if is_traceable_wrapper_subclass(held):
        for name in held.__tensor_flatten__()[0]:
            yield from addresses(getattr(held, name))
    elif not (held.is_meta or held.layout is not torch.strided):
        yield held.data_ptr(), held.numel()

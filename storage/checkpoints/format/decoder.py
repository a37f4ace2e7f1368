"""Rebuilds values from trees; :mod:`~holdfast.storage.checkpoints.format.structure` describes the nodes of a tree."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.nn import Parameter

from holdfast.errors import CheckpointError
from holdfast.storage.checkpoints.format.kinds import by_tag
from holdfast.storage.checkpoints.format.raw_tensors import RawReader
from holdfast.storage.checkpoints.format.script_classes import find_class
from holdfast.storage.checkpoints.format.structure import Node
from holdfast.storage.checkpoints.format.tensor_facts import placements_of


def decode(node: Node, tensors: Mapping[str, Any], mesh: Any = None) -> Any:
    """Return the value of one tree; see :class:`Decoder`."""
    return Decoder(tensors).value(node, mesh)


class Decoder:
    """Makes the values of trees again, in the order in which they were written."""

    def __init__(self, tensors: Mapping[str, Any], *, device: str | None = None) -> None:
        """Prepare for trees that refer to these items, by name.

        Args:
            tensors: the items.
            device: where to make tensors that lie in the trees; None: where they were.
        """
        self._tensors = tensors
        self._raw = RawReader(device)
        self._made: dict[int, tuple[Node, Any]] = {}

    def value(self, node: Node, mesh: Any = None) -> Any:
        """Return the value of a tree.

        Args:
            node: as :class:`~holdfast.storage.checkpoints.format.encoder.Encoder` wrote it.
            mesh: device mesh of tensors whose local part is of a class of its own.

        Raises:
            CheckpointError: an item is missing, or a class of the script is.
        """
        if isinstance(node, tuple) and node and isinstance(node[0], str) and node[0].startswith("@"):
            return self._special(node, mesh) if node[0] in _MADE_AT_ONCE else self._once(node, mesh)
        if not isinstance(node, tuple | list | dict):
            return node
        return self._once(node, mesh)

    def _once(self, node: Node, mesh: Any) -> Any:
        """Return what a node in several places of the tree is in all of them."""
        known = self._made.get(id(node))
        if known is None:
            # The node is kept, so that no later one gets its identity.
            known = self._made[id(node)] = node, self._new(node, mesh)
        return known[1]

    def _new(self, node: Node, mesh: Any) -> Any:
        if isinstance(node, tuple) and isinstance(node[0], str) and node[0].startswith("@"):
            return self._special(node, mesh)
        if isinstance(node, tuple):
            return by_tag(node[0]).up(node[1], lambda each: self.value(each, mesh))
        if isinstance(node, list):
            return [self.value(each, mesh) for each in node]
        return {name: self.value(each, mesh) for name, each in node.items()}

    def _special(self, node: Node, mesh: Any) -> Any:
        made = _MAKERS.get(node[0])
        if made is None:
            raise CheckpointError(
                f"it holds a {node[0]!r}, which this version of Holdfast does not know: use a newer one"
            )
        return made(self, node, mesh)

    def _item(self, node: Node, _: Any) -> Any:
        name = node[1] if node[0] != "@same" else node[2]
        if name not in self._tensors:
            raise CheckpointError(f"{name}: its structure names it, but it was not loaded")
        return self._tensors[name]

    def _strided(self, node: Node, _: Any) -> Tensor:
        return self._raw.strided(node)

    def _layout(self, node: Node, _: Any) -> Tensor:
        return self._raw.layout(node)

    def _param(self, node: Node, mesh: Any) -> Parameter:
        return Parameter(self.value(node[1], mesh), requires_grad=node[2])

    def _grad(self, node: Node, mesh: Any) -> Tensor:
        found: Tensor = self.value(node[1], mesh)
        return found.requires_grad_()

    def _with_attributes(self, node: Node, mesh: Any) -> Tensor:
        found: Tensor = self.value(node[1], mesh)
        vars(found).update(self.value(node[2], mesh))
        return found

    def _as(self, node: Node, mesh: Any) -> Tensor:
        kind = find_class(node[1], lambda each: issubclass(each, Tensor), "tensor")
        found: Tensor = self.value(node[2], mesh).as_subclass(kind)
        return found

    def _as_it_is(self, node: Node, _: Any) -> Any:
        return node[1]

    def _local(self, node: Node, mesh: Any) -> DTensor:
        placements = placements_of(node[2])
        if mesh is None or placements is None:
            raise CheckpointError(
                "a distributed tensor of a class of its own can be restored in its old layout only"
            )
        local = self.value(node[1], mesh)
        return DTensor.from_local(
            local, mesh, placements, shape=torch.Size(node[3]), stride=node[4], run_check=False
        )

    def _subclass(self, node: Node, mesh: Any) -> Tensor:
        _, name, context, inner, size, stride, requires_grad = node
        kind = find_class(
            name, lambda each: issubclass(each, Tensor) and hasattr(each, "__tensor_unflatten__"), "tensor"
        )
        flatten_context = self.value(context, mesh)
        made: Tensor = kind.__tensor_unflatten__(
            {attribute: self.value(each, mesh) for attribute, each in inner.items()},
            flatten_context,
            torch.Size(size),
            stride,
        )
        return made.requires_grad_() if requires_grad else made


_MADE_AT_ONCE = frozenset(("@ref", "@same", "@object", "@opaque", "@plain"))
_MAKERS: dict[str, Callable[[Decoder, Node, Any], Any]] = {
    "@ref": Decoder._item,
    "@same": Decoder._item,
    "@object": Decoder._item,
    "@raw": Decoder._strided,
    "@layout": Decoder._layout,
    "@param": Decoder._param,
    "@grad": Decoder._grad,
    "@attributes": Decoder._with_attributes,
    "@as": Decoder._as,
    "@opaque": Decoder._as_it_is,
    "@plain": Decoder._as_it_is,
    "@local": Decoder._local,
    "@subclass": Decoder._subclass,
}

"""The values of a state in the order of a layout: what one save copies, found quickly while little changed."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from torch import Tensor
from torch.distributed.checkpoint.utils import find_state_dict_object
from torch.nn import Parameter

from holdfast.storage.checkpoints.format import structure
from holdfast.storage.checkpoints.format.layout import Piece, Placed, ShardLayout, dump_object
from holdfast.storage.checkpoints.save.glance import Glance

_SCALARS = (bool, int, float, str, bytes, type(None))


@dataclass(frozen=True)
class Contents:
    """Values of all items of a layout at one step: what a save copies."""

    tensors: list[Tensor]
    objects: list[bytes]


@dataclass(frozen=True)
class _Pickled:
    """An object as it was written last."""

    value: object
    quick: bytes
    """By pickle as it is: shows whether the value changed."""
    data: bytes


@dataclass(frozen=True)
class _Loose:
    """Parts that must be checked although the rest of the state is identical."""

    fixed: Mapping[str, Any]
    """That rest."""
    names: frozenset[str]
    tensors: list[int]
    """Numbers of the loose ones."""
    objects: list[int]
    glance: Glance
    last: Contents


class Collector:
    """Finds the items of one layout in states that are given one after the other."""

    def __init__(self, layout: ShardLayout) -> None:
        self.tensor_items = [each for each in layout.items if each.piece.is_tensor]
        self.object_items = [each for each in layout.items if not each.piece.is_tensor]
        self._names = {each.piece.fqn for each in layout.items}
        # How each DTensor is placed; the boxes of the plan are only right for these.
        self._specs: dict[int, Any] = {}
        self._pickled: dict[str, _Pickled] = {}
        self._last: tuple[Glance, list[Tensor]] | None = None
        self._loose: _Loose | None = None

    def collect(self, flat: Mapping[str, Any], fixed: Mapping[str, Any] | None = None) -> Contents | None:
        """Return the values of a state in the layout's order; None when they do not fit it any more.

        Args:
            flat: the state by name.
            fixed: more of it, which is the same dictionary object as the last time if all tensors in it lie where they
                lay, and nothing else in it changed.
        """
        if fixed is None:
            return self._collect(flat)
        loose, self._loose = self._loose, None
        if loose is not None and loose.fixed is fixed:
            contents = self._collect_loose(flat, loose)
            self._loose = None if contents is None else replace(loose, last=contents)
            return contents
        contents = self._collect({**fixed, **flat})
        self._loose = None if contents is None else self._loose_of(flat, fixed, contents)
        return contents

    def _collect(self, flat: Mapping[str, Any]) -> Contents | None:
        if flat.keys() != self._names:
            return None
        tensors = self._tensors(flat)
        if tensors is None:
            return None
        objects = [self._dump(each.piece.fqn, flat[each.piece.fqn]) for each in self.object_items]
        return Contents(tensors, objects) if self._have_room(objects, self.object_items) else None

    def _loose_of(self, flat: Mapping[str, Any], fixed: Mapping[str, Any], contents: Contents) -> _Loose:
        tensors = [number for number, each in enumerate(self.tensor_items) if each.piece.fqn in flat]
        objects = [number for number, each in enumerate(self.object_items) if each.piece.fqn in flat]
        glance = Glance([flat[self.tensor_items[number].piece.fqn] for number in tensors])
        return _Loose(fixed, frozenset(flat), tensors, objects, glance, contents)

    def _collect_loose(self, flat: Mapping[str, Any], loose: _Loose) -> Contents | None:
        """Collect as :meth:`_collect` does, where all but ``flat`` is as it was."""
        if flat.keys() != loose.names:
            return None
        tensors, objects = [*loose.last.tensors], [*loose.last.objects]
        for at in loose.glance.changed(
            [flat[self.tensor_items[number].piece.fqn] for number in loose.tensors]
        ):
            number = loose.tensors[at]
            tensor = self._tensor(number, flat)
            if tensor is None:
                return None
            tensors[number] = tensor.detach()
        for number in loose.objects:
            each = self.object_items[number]
            objects[number] = self._dump(each.piece.fqn, flat[each.piece.fqn])
            if len(objects[number]) > each.place.length:
                return None
        return Contents(tensors, objects)

    @staticmethod
    def _have_room(objects: Sequence[bytes], items: Sequence[Placed]) -> bool:
        return all(len(data) <= each.place.length for data, each in zip(objects, items, strict=True))

    def _tensors(self, flat: Mapping[str, Any]) -> list[Tensor] | None:
        """Return the tensors in the layout's order; None when one is missing or is sharded or made otherwise."""
        found = [flat[each.piece.fqn] for each in self.tensor_items]
        if self._last is None:
            glance, tensors = Glance(found), [*found]
            changed = list(range(len(found)))
        else:
            glance, known = self._last
            changed = glance.changed(found)
            if not changed:
                return known
            tensors = [*known]
        self._last = None
        for number in changed:
            tensor = self._tensor(number, flat)
            if tensor is None:
                return None
            # Another object, also where the same one lies elsewhere now: copies are prepared for objects.
            tensors[number] = tensor.detach()
        self._last = glance, tensors
        return tensors

    def _tensor(self, number: int, flat: Mapping[str, Any]) -> Tensor | None:
        """Return the tensor of one piece."""
        each = self.tensor_items[number]
        spec, known = getattr(flat[each.piece.fqn], "_spec", None), self._specs.get(number)
        if number in self._specs and spec is not known and spec != known:
            return None
        try:
            tensor = _held(flat, each.piece)
        except (ValueError, IndexError, AttributeError):
            return None
        if not _fits(tensor, each):
            return None
        self._specs[number] = spec
        return tensor

    def _dump(self, name: str, value: object) -> bytes:
        """Pickled for torch.load; the slow part is skipped while the value is what it was."""
        known = self._pickled.get(name)
        if known is not None and known.value is value and _stays(name, value):
            return known.data
        try:
            quick = pickle.dumps(value)
        except (pickle.PicklingError, TypeError, AttributeError):
            return dump_object(value)
        data = known.data if known is not None and known.quick == quick else dump_object(value)
        self._pickled[name] = _Pickled(value, quick, data)
        return data


def _stays(name: str, value: object) -> bool:
    """Return whether the same object has the same contents: for these types every change makes a new object."""
    return type(value) in _SCALARS or (
        type(value) in (dict, tuple) and name.startswith(structure.REPLACED_PREFIXES)
    )


def _fits(value: object, each: Placed) -> bool:
    return isinstance(value, Tensor) and value.shape == each.piece.shape and value.dtype == each.piece.dtype


def _held(flat: Mapping[str, Any], piece: Piece) -> Tensor:
    """Return the tensor of a piece in ``flat``."""
    found = flat[piece.fqn]
    if piece.whole and type(found) in (Tensor, Parameter):
        return cast(Tensor, found)
    box: Tensor = find_state_dict_object(cast(dict[str, Any], flat), piece.held)
    return box if piece.whole or box.shape != piece.sizes else box[piece.start : piece.stop]

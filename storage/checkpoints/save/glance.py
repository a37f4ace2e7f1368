"""A quick check that nothing changed: whether tensors are the same objects, of the same form, at the same place.

In most states only the elements differ from one save to the next. Then all that is known of the save before (names,
pieces, places in the file) still holds, and a save costs a look at each tensor instead of a walk through the state.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch._C._dynamo.guards import TensorGuards
from torch.distributed.tensor import DTensor
from torch.nn import Parameter

_PLAIN = frozenset((Tensor, Parameter))
_Form = tuple[Any, ...]
_ASKED: tuple[Any, ...] = (
    Tensor.data_ptr,
    Tensor.stride,
    operator.attrgetter("shape"),
    operator.attrgetter("dtype"),
    operator.attrgetter("requires_grad"),
)
"""Attributes that make a form. Each is read of all tensors at once: half the time of one tensor after the other."""


class Glance:
    """Tensors as they were: the objects, and where each lies, its shape, strides and type."""

    def __init__(self, tensors: Sequence[object]) -> None:
        """Remember ``tensors``; what is there instead of one, and kinds of their own, count as changed each time."""
        self._remember(tensors, _forms(tensors))

    def _remember(self, tensors: Sequence[Any], forms: list[_Form | None]) -> None:
        self._tensors, self._forms = list(tensors), forms
        self._together = None if None in forms else _Together.of(self._tensors)

    def same(self, tensors: Sequence[object]) -> bool:
        """Return whether ``tensors`` are the same objects, unchanged but for their elements."""
        return len(tensors) == len(self._tensors) and not self.changed(tensors)

    def holds(self, tensors: Sequence[object]) -> bool:
        """Return whether ``tensors`` are the same objects, whatever their form."""
        return identical(tensors, self._tensors)

    def changed(self, tensors: Sequence[object]) -> list[int]:
        """Return the numbers of tensors that are other ones than before, of as many; the new ones are remembered."""
        together = self._together
        if together is not None and identical(tensors, self._tensors) and together.same():
            return []
        forms = _forms(tensors)
        changed = [
            number
            for number, (now, was) in enumerate(zip(tensors, self._tensors, strict=True))
            if now is not was or forms[number] is None or forms[number] != self._forms[number]
        ]
        self._remember(tensors, forms)
        return changed


class _Together:
    """The forms of many tensors, compared at once by what torch's compiler compares its inputs with.

    A third of the time of asking each for all that makes its form.
    """

    def __init__(self, tensors: Sequence[Any]) -> None:
        """Remember ``tensors``, each of them plain or sharded.

        Raises:
            RuntimeError, NotImplementedError: one of them is of a layout that lies nowhere.
        """
        self._sharded = [each for each in tensors if type(each) is DTensor]
        self._locals, self._specs = list(map(_local, self._sharded)), list(map(_spec, self._sharded))
        self._in_memory = _distinct([*(each for each in tensors if type(each) is not DTensor), *self._locals])
        self._places = list(map(Tensor.data_ptr, self._in_memory))
        # Each may be there once: torch takes the same tensor in two places for a change.
        self._distinct = [*_distinct(self._sharded), *self._in_memory]
        with torch.enable_grad():
            self._guards = TensorGuards(*self._distinct, dynamic_dims_sizes=None, dynamic_dims_strides=None)

    @staticmethod
    def of(tensors: Sequence[Any]) -> _Together | None:
        """Return them together; None: that is impossible, such as of sparse ones."""
        try:
            return _Together(tensors)
        except (RuntimeError, NotImplementedError):
            return None

    def same(self) -> bool:
        """Return whether all have the form that they had, at the same place."""
        if not (
            identical(list(map(_local, self._sharded)), self._locals)
            and identical(list(map(_spec, self._sharded)), self._specs)
        ):
            return False
        with torch.enable_grad():  # else what needs a gradient seems to need none
            alike = self._guards.check(*self._distinct)
        return alike and list(map(Tensor.data_ptr, self._in_memory)) == self._places


def _distinct(tensors: Sequence[Any]) -> list[Any]:
    return list({id(each): each for each in tensors}.values())


_local = operator.attrgetter("_local_tensor")
_spec = operator.attrgetter("_spec")


def identical(left: Sequence[object], right: Sequence[object]) -> bool:
    """Return whether both hold the same objects in the same order."""
    return len(left) == len(right) and all(map(operator.is_, left, right))


def _forms(tensors: Sequence[Any]) -> list[_Form | None]:
    if _PLAIN.issuperset(map(type, tensors)):
        try:
            return [*zip(*(map(ask, tensors) for ask in _ASKED), strict=True)]
        except (RuntimeError, NotImplementedError):  # one of a layout that lies nowhere, such as a sparse one
            pass
    return [_form_if_any(each) for each in tensors]


def _form(tensor: Tensor) -> _Form:
    return tuple(ask(tensor) for ask in _ASKED)


def _form_if_any(tensor: Any) -> _Form | None:
    try:
        return _form(tensor) if type(tensor) in _PLAIN else _other(tensor)
    except (RuntimeError, NotImplementedError):
        return None


def _other(tensor: Any) -> _Form | None:
    if type(tensor) is not DTensor or type(tensor._local_tensor) not in _PLAIN:
        return None
    return *_form(tensor._local_tensor), tensor.shape, tensor._spec, tensor.requires_grad

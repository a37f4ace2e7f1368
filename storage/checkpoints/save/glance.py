"""A quick check that nothing changed: whether tensors are the same objects, of the same form, at the same place.

In most states only the elements differ from one save to the next. Then all that is known of the save before (names,
pieces, places in the file) still holds, and a save costs a look at each tensor instead of a walk through the state.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

from torch import Tensor
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
        self._tensors = list(tensors)
        self._columns = _columns(tensors)
        self._forms = _forms(tensors, self._columns)

    def same(self, tensors: Sequence[object]) -> bool:
        """Return whether ``tensors`` are the same objects, unchanged but for their elements."""
        return len(tensors) == len(self._tensors) and not self.changed(tensors)

    def holds(self, tensors: Sequence[object]) -> bool:
        """Return whether ``tensors`` are the same objects, whatever their form."""
        return identical(tensors, self._tensors)

    def changed(self, tensors: Sequence[object]) -> list[int]:
        """Return the numbers of tensors that are other ones than before, of as many; the new ones are remembered."""
        columns = _columns(tensors)
        if columns is not None and columns == self._columns and identical(tensors, self._tensors):
            return []
        forms = _forms(tensors, columns)
        changed = [
            number
            for number, (now, was) in enumerate(zip(tensors, self._tensors, strict=True))
            if now is not was or forms[number] is None or forms[number] != self._forms[number]
        ]
        self._tensors, self._columns, self._forms = list(tensors), columns, forms
        return changed


def identical(left: Sequence[object], right: Sequence[object]) -> bool:
    """Return whether both hold the same objects in the same order."""
    return len(left) == len(right) and all(map(operator.is_, left, right))


def _columns(tensors: Sequence[Any]) -> list[list[Any]] | None:
    """Return the attributes that make the forms, each of all tensors; None when not all tensors are plain ones."""
    if not _PLAIN.issuperset(map(type, tensors)):
        return None
    try:
        return [list(map(ask, tensors)) for ask in _ASKED]
    except (RuntimeError, NotImplementedError):  # one of a layout that lies nowhere, such as a sparse one
        return None


def _forms(tensors: Sequence[Any], columns: list[list[Any]] | None) -> list[_Form | None]:
    return [*zip(*columns, strict=True)] if columns is not None else [_form_if_any(each) for each in tensors]


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

"""Tell quickly that nothing changed: whether tensors are the very ones, of the same form, at the same place.

Of most states only the elements differ from one save to the next. Then all that was found out about the one before
(names, pieces, places in the file) holds, and a save costs a look at each tensor instead of a walk through the state.
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
"""What makes a form. Each is asked of all tensors in one go: half of what one tensor after the other takes."""


class Glance:
    """Tensors as they were: the objects, and where each lies, its shape, strides and type."""

    def __init__(self, tensors: Sequence[object]) -> None:
        """Remember ``tensors``; what is there instead of one, and kinds of their own, count as changed each time."""
        self._tensors = list(tensors)
        self._columns = _columns(tensors)
        self._forms = _forms(tensors, self._columns)

    def same(self, tensors: Sequence[object]) -> bool:
        """Whether ``tensors`` are the same objects, unchanged but for their elements."""
        return len(tensors) == len(self._tensors) and not self.changed(tensors)

    def holds(self, tensors: Sequence[object]) -> bool:
        """Whether ``tensors`` are the same objects, whatever their form."""
        return identical(tensors, self._tensors)

    def changed(self, tensors: Sequence[object]) -> list[int]:
        """Numbers of those that are not what they were; as many as there were. They are remembered instead."""
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
    """Whether both hold the very same objects in the same order."""
    return len(left) == len(right) and all(map(operator.is_, left, right))


def _columns(tensors: Sequence[Any]) -> list[list[Any]] | None:
    """What makes the forms, each of all tensors; None when there are others than plain ones."""
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

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

_PLAIN = (Tensor, Parameter)
_Form = tuple[Any, ...]


class Glance:
    """Tensors as they were: the objects, and where each lies, its shape, strides and type."""

    def __init__(self, tensors: Sequence[object]) -> None:
        """Remember ``tensors``; what is there instead of one, and kinds of their own, count as changed each time."""
        self._tensors = list(tensors)
        self._forms = _forms(self._tensors)

    def same(self, tensors: Sequence[object]) -> bool:
        """Whether ``tensors`` are the same objects, unchanged but for their elements."""
        return len(tensors) == len(self._tensors) and not self.changed(tensors)

    def changed(self, tensors: Sequence[object]) -> list[int]:
        """Numbers of those that are not what they were; as many as there were. They are remembered instead."""
        forms = _forms(tensors)
        if identical(tensors, self._tensors) and forms == self._forms and None not in forms:
            return []
        changed = [
            number
            for number, (now, was) in enumerate(zip(tensors, self._tensors, strict=True))
            if now is not was or forms[number] is None or forms[number] != self._forms[number]
        ]
        self._tensors, self._forms = list(tensors), forms
        return changed


def identical(left: Sequence[object], right: Sequence[object]) -> bool:
    """Whether both hold the very same objects in the same order."""
    return len(left) == len(right) and all(map(operator.is_, left, right))


def _forms(tensors: Sequence[Any]) -> list[_Form | None]:
    try:
        return [
            # Spelled out: a call for each would cost as much again.
            (each.data_ptr(), each.shape, each.stride(), each.dtype, each.requires_grad)
            if type(each) in _PLAIN
            else _other(each)
            for each in tensors
        ]
    except (RuntimeError, NotImplementedError):  # one of a layout that lies nowhere, such as a sparse one
        return [_form_if_any(each) for each in tensors]


def _form(tensor: Tensor) -> _Form:
    return tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype, tensor.requires_grad


def _form_if_any(tensor: Any) -> _Form | None:
    try:
        return _form(tensor) if type(tensor) in _PLAIN else _other(tensor)
    except (RuntimeError, NotImplementedError):
        return None


def _other(tensor: Any) -> _Form | None:
    if type(tensor) is not DTensor or type(tensor._local_tensor) not in _PLAIN:
        return None
    held = tensor._local_tensor
    return *_form(held), tensor.shape, tensor._spec, tensor.requires_grad

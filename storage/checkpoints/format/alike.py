"""Whether two values of a state are the same: types, keys and their order, and every bit of numbers and tensors."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from holdfast.storage.checkpoints.format.item_bytes import bytes_of


def alike(one: Any, other: Any) -> bool:  # noqa: PLR0911  (a table of kinds)
    """Return whether ``other`` equals ``one``. For objects that cannot be compared, their attributes are compared."""
    if type(one) is not type(other):
        return False
    if isinstance(one, Tensor):
        return _tensors(one, other)
    if isinstance(one, np.ndarray | np.generic):
        return bool(
            one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
        )
    if isinstance(one, float):
        return struct.pack("<d", one) == struct.pack("<d", other)
    if isinstance(one, Mapping):
        return alike(list(one.items()), list(other.items()))
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(alike, one, other))
    if isinstance(one, np.random.Generator | np.random.RandomState):
        return alike(one.__getstate__(), other.__getstate__())
    if isinstance(one, np.random.BitGenerator):
        return alike(one.state, other.state)
    if getattr(type(one), "__eq__", None) is object.__eq__:
        return alike(getattr(one, "__dict__", None), getattr(other, "__dict__", None))
    return bool(one == other)


def _tensors(one: Tensor, other: Tensor) -> bool:
    if (one.dtype, one.shape, one.layout) != (other.dtype, other.shape, other.layout):
        return False
    if type(one) not in (Tensor, torch.nn.Parameter) or one.layout is not torch.strided or one.is_quantized:
        return True  # its parts are not compared: all that is known is that it was loaded
    return bytes(bytes_of(one.detach().contiguous())) == bytes(bytes_of(other.detach().contiguous()))

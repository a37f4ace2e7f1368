"""NumPy's types, arrays and numbers, as they are played: none may be, or point to, an object."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from holdfast.bounded_pickle import MaliciousPickleError
from holdfast.storage.checkpoints.load.stand_ins import (
    LONGEST_TEXT,
    NumpyTypeStandIn,
    Spender,
    StandIn,
    product,
)

_MOST_ALIGNED = 4096
"""Bytes: no type of NumPy is aligned to more."""
_OBJECT_FLAGS = 0x07
"""Of a NumPy type: its elements are, or point to, objects."""


def array(guard: Spender, kind: Any, shape: Any = None, *_: Any) -> StandIn:
    """Check an array that gets its shape later."""
    guard.spend(product(shape) * np.dtype("c16").itemsize)
    return StandIn()


def dtype(_: Spender, text: Any = None, *__: Any) -> StandIn:
    """Check the name of a type: objects have none here."""
    if not isinstance(text, str) or len(text) > LONGEST_TEXT:
        raise MaliciousPickleError("it has a NumPy type without a name: refused")
    try:
        found = np.dtype(text)
    except (SyntaxError, RuntimeWarning) as error:
        raise ValueError(str(error)) from None
    if found.hasobject:
        raise MaliciousPickleError("it has a NumPy type of objects: refused")
    return NumpyTypeStandIn(found.itemsize)


def dtype_state(made: Any, state: Any) -> None:
    """Refuse what would make numbers pointers, or elements that lie outside of their array."""
    if not isinstance(made, NumpyTypeStandIn) or not isinstance(state, tuple) or len(state) not in (8, 9):
        raise MaliciousPickleError("it has a NumPy type that is not described as NumPy does: refused")
    version, order, part, names, fields, *numbers = state[:8]
    size, align, flags = numbers
    if any(type(each) is not int for each in (version, *numbers)) or flags & _OBJECT_FLAGS:
        raise MaliciousPickleError("it has a NumPy type of objects: refused")
    fits = (
        version == len(state) - 5
        and order in ("<", ">", "=", "|")
        and size in (-1, made.nbytes)
        and -1 <= align <= _MOST_ALIGNED
        and (part is None or _is_subarray(made, part))
        and ((names is None and fields is None) or _are_fields(made, names, fields))
        and (len(state) == 8 or _is_metadata(state[8]))
    )
    if not fits:
        raise MaliciousPickleError("it has a NumPy type whose parts do not fit into it: refused")


def _is_subarray(made: NumpyTypeStandIn, part: Any) -> bool:
    if not isinstance(part, tuple) or len(part) != 2 or not isinstance(part[0], NumpyTypeStandIn):
        return False
    shape = part[1] if isinstance(part[1], tuple) else (part[1],)
    sizes = all(type(each) is int and each >= 0 for each in shape)
    return sizes and part[0].nbytes * math.prod(shape) == made.nbytes


def _are_fields(made: NumpyTypeStandIn, names: Any, fields: Any) -> bool:
    if not isinstance(names, tuple) or not isinstance(fields, dict) or not set(names) <= fields.keys():
        return False
    return all(type(name) is str for name in fields) and all(
        isinstance(each, tuple)
        and len(each) in (2, 3)
        and isinstance(each[0], NumpyTypeStandIn)
        and type(each[1]) is int
        and 0 <= each[1] <= made.nbytes - each[0].nbytes
        for each in fields.values()
    )


def _is_metadata(metadata: Any) -> bool:
    """Return whether it is a dictionary of the script, or the unit of a time."""
    if metadata is None or isinstance(metadata, dict):
        return True
    if (
        not isinstance(metadata, tuple)
        or len(metadata) != 2
        or not (metadata[0] is None or isinstance(metadata[0], dict))
    ):
        return False
    unit = metadata[1]
    known = isinstance(unit, tuple) and len(unit) == 4 and isinstance(unit[0], bytes | str)
    return known and all(type(each) is int for each in unit[1:])


def scalar(_: Spender, *arguments: Any) -> StandIn:
    """Check a number: a type, and bytes."""
    if len(arguments) != 2 or not isinstance(arguments[1], bytes):
        raise MaliciousPickleError("it has a NumPy number without its bytes: refused")
    return StandIn()

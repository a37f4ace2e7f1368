"""Whether two nested states are the same, bit for bit: types, keys, order, values, which tensors share memory, and
which containers and objects are one."""

from __future__ import annotations

import collections
import dataclasses
import datetime
import enum
import io
import random
import struct
import types
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from holdfast.storage.checkpoints.format.places import key_name


def difference(left: Any, right: Any, path: str = "") -> str:
    """Where and how ``right`` is not ``left``; empty when it is."""
    found = _difference(left, right, path)
    if not found and (before := _sharing(left)) != (after := _sharing(right)):
        found = f"{path}: tensors share memory as {before} before, and as {after} after"
    if not found and (before := _memories(left)) != (after := _memories(right)):
        found = f"{path}: arrays share memory as {before} before, and as {after} after"
    if not found and (before := _identities(left)) != (after := _identities(right)):
        found = f"{path}: containers and objects were one as {before} before, and as {after} after"
    return found


def _difference(left: Any, right: Any, path: str) -> str:  # noqa: PLR0911  (a case per kind)
    if type(left) is not type(right):
        return (
            f"{path}: {type(left).__name__} became {type(right).__name__} ({_shown(left)} / {_shown(right)})"
        )
    if isinstance(left, Tensor):
        return _tensor(left, right, path)
    if isinstance(left, np.ndarray):
        return _array(left, right, path)
    if isinstance(left, Mapping):
        if isinstance(left, collections.defaultdict) and left.default_factory is not right.default_factory:
            return f"{path}: another default_factory"
        if (found := _series(list(left), list(right), f"{path}<keys>")) != "":
            return found
        if isinstance(left, collections.OrderedDict) and (vars(left) or vars(right)):
            found = _difference(vars(left), vars(right), f"{path}<attributes>")
        pairs = zip(left.items(), right.values(), strict=True)
        differ = (_difference(one, two, f"{path}.{key_name(key)}") for (key, one), two in pairs)
        return found or next(filter(None, differ), "")
    if isinstance(left, list | tuple | collections.deque):
        if isinstance(left, collections.deque) and left.maxlen != right.maxlen:
            return f"{path}: maxlen {left.maxlen} became {right.maxlen}"
        return _series(left, right, path)
    if isinstance(left, enum.Enum):
        return "" if left is right else f"{path}: {left} became {right}"
    if (plain := _opened(left)) is not None:
        return _difference(plain, _opened(right), path)
    return "" if _same_scalar(left, right) else f"{path}: {_shown(left)} became {_shown(right)}"


def _shown(value: Any) -> str:
    try:
        return f"{value!r:.80}"
    except ValueError:  # a number of thousands of digits
        return f"a {type(value).__name__}"


def _series(left: Any, right: Any, path: str) -> str:
    if len(left) != len(right):
        return f"{path}: {len(left)} entries became {len(right)}"
    pairs = enumerate(zip(left, right, strict=True))
    return next(filter(None, (_difference(a, b, f"{path}[{at}]") for at, (a, b) in pairs)), "")


def _opened(value: Any) -> Any:  # noqa: PLR0911  (a case per kind)
    """Return the contents of an object that does not compare, as plain values."""
    if isinstance(value, io.BytesIO):
        return (value.getvalue(), value.tell())
    if isinstance(value, random.Random):
        return value.getstate()
    if isinstance(value, np.random.Generator):
        return _opened(value.bit_generator)
    if isinstance(value, np.random.RandomState):
        held: Any = value
        return held.get_state(legacy=isinstance(held._bit_generator, np.random.MT19937))
    if isinstance(value, np.random.BitGenerator):
        return {"state": dict(value.state), "seed": dict(value.seed_seq.state)}
    if isinstance(value, torch.Generator):
        return value.get_state()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        slots = [name for each in type(value).__mro__ for name in vars(each).get("__slots__", ())]
        held = {name: getattr(value, name) for name in slots if hasattr(value, name)}
        fields = {each.name: getattr(value, each.name) for each in dataclasses.fields(value)}
        return fields | held | getattr(value, "__dict__", {})
    if isinstance(value, types.SimpleNamespace) or (
        type(value).__module__.startswith("tests.") and hasattr(value, "__dict__")
    ):
        return vars(value)
    return None


def _same_scalar(left: Any, right: Any) -> bool:
    if isinstance(left, float):
        return struct.pack("d", left) == struct.pack("d", right)
    if isinstance(left, complex):
        return struct.pack("dd", left.real, left.imag) == struct.pack("dd", right.real, right.imag)
    if isinstance(left, np.generic):
        alike = left == right if left.dtype.names else left.tobytes() == right.tobytes()
        return _dtype(left.dtype) == _dtype(right.dtype) and bool(alike)
    if isinstance(left, datetime.datetime | datetime.time):  # equal in whichever zone
        return bool(left == right) and _same_scalar(left.tzinfo, right.tzinfo)
    if isinstance(left, datetime.timezone):
        return bool(left == right) and left.tzname(None) == right.tzname(None)
    return bool(left == right)


def _array(left: np.ndarray[Any, Any], right: np.ndarray[Any, Any], path: str) -> str:
    if left.shape != right.shape:
        return f"{path}: shape {left.shape} became {right.shape}"
    if (before := _dtype(left.dtype)) != (after := _dtype(right.dtype)):
        return f"{path}: dtype {before} became {after}"
    if _lies(left) != _lies(right):
        return f"{path}: another order"
    if left.flags.writeable != right.flags.writeable:
        return f"{path}: another writeability"
    return "" if _same_elements(left, right) else f"{path}: other elements"


def _same_elements(left: np.ndarray[Any, Any], right: np.ndarray[Any, Any]) -> bool:
    """By their bits; what lies between fields is no one's."""
    if left.dtype.names:
        return all(_same_elements(left[name], right[name]) for name in left.dtype.names)
    return left.tobytes() == right.tobytes()


def _dtype(value: np.dtype[Any]) -> Any:
    """All properties of a type: two are equal whatever their alignment and notes are."""
    fields = {name: (*field[1:], _dtype(field[0])) for name, field in (value.fields or {}).items()}
    inside = (_dtype(value.subdtype[0]), value.subdtype[1]) if value.subdtype else None
    noted = dict(value.metadata) if value.metadata else None
    kind = value.type if value.kind == "V" else None
    return value.str, kind, value.itemsize, value.isalignedstruct, noted, fields, inside


def _lies(value: np.ndarray[Any, Any]) -> Any:
    """The order of its axes in memory."""
    return np.empty_like(value, order="K", subok=False).strides if value.size else ()


def _tensor(left: Tensor, right: Tensor, path: str) -> str:
    names = ("dtype", "layout", "requires_grad", "is_nested", "is_quantized")
    for name in names if left.is_nested else ("shape", *names):
        if str(getattr(left, name)) != str(getattr(right, name)):
            return f"{path}: {name} {getattr(left, name)} became {getattr(right, name)}"
    if not hasattr(left, "__tensor_flatten__") and (
        found := _difference(vars(left), vars(right), f"{path}<attributes>")
    ):
        return found
    return next(
        filter(
            None,
            (
                "" if bits(a) == bits(b) else f"{path}: other elements"
                for a, b in zip(inner(left), inner(right), strict=True)
            ),
        ),
        "",
    )


def inner(value: Tensor) -> list[Tensor]:  # noqa: PLR0911  (a case per layout)
    """The strided tensors that ``value`` consists of."""
    value = value.detach()
    if value.layout is torch.sparse_coo:
        return [value._indices(), value._values()]
    if value.layout in (torch.sparse_csr, torch.sparse_bsr):
        return [value.crow_indices(), value.col_indices(), value.values()]
    if value.layout in (torch.sparse_csc, torch.sparse_bsc):
        return [value.ccol_indices(), value.row_indices(), value.values()]
    if value.is_nested:
        return list(value.unbind())
    if value.is_quantized:
        return [value.int_repr(), torch.tensor(value.q_scale()), torch.tensor(value.q_zero_point())]
    if hasattr(value, "__tensor_flatten__"):
        return [each for name in value.__tensor_flatten__()[0] for each in inner(getattr(value, name))]
    return [value.as_subclass(Tensor)]


def bits(value: Tensor) -> bytes:
    """Its elements as bytes, in order."""
    plain = value.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
    # A copy: no one may resize a tensor in place after numpy has seen its memory.
    return plain.clone().view(torch.uint8).numpy().tobytes() if plain.numel() else b""


def _sharing(value: Any) -> list[int]:
    """For each tensor inside, the number of the first one that has the same memory."""
    first: dict[int, int] = {}
    found = []
    for number, each in enumerate(tensors(value)):
        at = each.untyped_storage().data_ptr() if each.numel() else 0
        found.append(first.setdefault(at, number) if at else number)
    return found


def _memories(value: Any) -> list[int]:
    """For each numpy array inside, the number of the first one that has elements in the same memory."""
    arrays = [each for each in _mutable(value) if isinstance(each, np.ndarray)]
    return [
        next(at for at, other in enumerate(arrays) if other is each or np.shares_memory(other, each))
        for each in arrays
    ]


def _identities(value: Any) -> list[int]:
    """For each container and object that can be changed, the number of the first place in which it is."""
    first: dict[int, int] = {}
    held = list(
        _mutable(value)
    )  # what is made for the comparison is kept, so that its identity is no other's
    return [first.setdefault(id(each), number) for number, each in enumerate(held)]


def _mutable(value: Any) -> Iterator[Any]:
    """The containers and objects inside, in order, as often as they are there."""
    if isinstance(value, enum.Enum):
        return
    if isinstance(value, Tensor):
        yield value
        return
    opened = None if isinstance(value, Mapping | list | tuple) else _opened(value)
    if isinstance(value, Mapping | list | set | collections.deque | np.ndarray) or opened is not None:
        yield value
    if isinstance(value, np.random.Generator):
        yield value.bit_generator
    inside: Any = value if isinstance(value, list | tuple | collections.deque) else ()
    if isinstance(value, Mapping):
        inside = value.values()
    elif isinstance(opened, Mapping):
        inside = opened.values()
    for each in inside:
        yield from _mutable(each)


def tensors(value: Any) -> Iterator[Tensor]:
    """The plain tensors inside, in order."""
    if isinstance(value, Tensor):
        if value.layout is torch.strided and not value.is_nested and not hasattr(value, "__tensor_flatten__"):
            yield value
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from tensors(each)
    elif isinstance(value, list | tuple | collections.deque):
        for each in value:
            yield from tensors(each)

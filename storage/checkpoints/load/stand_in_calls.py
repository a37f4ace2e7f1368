"""Functions that an object of a checkpoint may name: their arguments are looked at, and stand-ins are made."""

from __future__ import annotations

import datetime
import decimal
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

import torch
from numpy.random import _pickle as np_random

from holdfast.bounded_pickle import MaliciousPickleError, PickledKind
from holdfast.storage.checkpoints.load import stand_in_numpy
from holdfast.storage.checkpoints.load.stand_ins import (
    LONGEST_TEXT,
    Spender,
    StandIn,
    StorageStandIn,
    TensorStandIn,
    nothing,
    product,
    thing,
)

_GENERATOR_BYTES = 8 << 10
"""A random generator before it has its state."""


def _call(wanted: Callable[..., bool], make: Callable[..., Any] = thing) -> Callable[..., Any]:
    """Return a stand-in for a call whose arguments meet a condition."""

    def call(_: Spender, *arguments: Any) -> Any:
        if not wanted(*arguments):
            kinds = ", ".join(type(each).__name__ for each in arguments[:5])
            raise MaliciousPickleError(f"it calls a function of data with ({kinds:.100}): refused")
        return make(*arguments)

    return call


def _of_types(*kinds: Any, longest: int | None = None) -> Callable[..., bool]:
    """Return a condition: arguments are of these types, and texts not too long."""

    def wanted(*arguments: Any) -> bool:
        return all(
            isinstance(each, kinds)
            and (longest is None or not isinstance(each, (str, bytes)) or len(each) <= longest)
            for each in arguments
        )

    return wanted


def _encode(text: Any = None, encoding: Any = None) -> bytes:
    if not isinstance(text, str) or encoding not in ("latin1", "latin-1"):
        raise MaliciousPickleError("it encodes text in another way than pickle does: refused")
    return text.encode("latin1")


def _is_bytes(*arguments: Any) -> bool:
    """``bytearray`` of a number is as long as that number."""
    return not arguments or (
        isinstance(arguments[0], (str, bytes)) and arguments[1:] in ((), ("latin-1",), ("latin1",))
    )


def _view(guard: Spender, storage: Any, offset: Any, size: Any, stride: Any, *_: Any) -> TensorStandIn:
    """Check that a tensor lies in its storage, which torch would else enlarge."""
    elements = product(size)
    product(stride)
    if (
        not isinstance(storage, StorageStandIn)
        or type(offset) is not int
        or offset < 0
        or len(size) != len(stride)
    ):
        raise MaliciousPickleError("it has a tensor without a storage: refused")
    last = offset + 1 + sum((s - 1) * d for s, d in zip(size, stride, strict=True)) if elements else 0
    if last > storage.elements:
        raise MaliciousPickleError(
            f"it has a tensor of {last} elements in a storage of {storage.elements}: refused"
        )
    return TensorStandIn(elements)


def _nested(guard: Spender, *_: Any) -> StandIn:
    """Refuse what torch would make with sizes and offsets that it has not read yet: whatever lay in that memory."""
    if not guard.filled:
        raise MaliciousPickleError(
            "it has a nested tensor in torch's one-stream format, which torch cannot read: refused"
        )
    return StandIn()


def _quantized(guard: Spender, storage: Any, offset: Any, size: Any, stride: Any, *_: Any) -> TensorStandIn:
    """Check a tensor whose memory is taken before it has its storage."""
    made = _view(guard, storage, offset, size, stride)
    guard.spend(made.elements * storage.itemsize)
    return made


def _converted(guard: Spender, data: Any, *_: Any) -> StandIn:
    """Check a tensor that is copied, as large as it claims to be."""
    if isinstance(data, TensorStandIn):
        guard.spend(data.elements * torch.complex128.itemsize)
    return StandIn()


def _decimal(text: str = "0") -> decimal.Decimal:
    try:
        return decimal.Decimal(text)
    except decimal.InvalidOperation:
        raise ValueError("no decimal number") from None


def _parameter(_: Spender, data: Any, *__: Any) -> Any:
    return data


def _of_type(guard: Spender, make: Any, *others: Any) -> Any:
    """Play the call within ``_rebuild_from_type_v2``."""
    if (
        not isinstance(make, PickledKind)
        or make.call is None
        or len(others) != 3
        or not isinstance(others[1], tuple)
    ):
        raise MaliciousPickleError("it makes a tensor by no known function: refused")
    return make.call(*others[1])


def _generator(guard: Spender, *_: Any) -> StandIn:
    guard.spend(_GENERATOR_BYTES)
    return StandIn()


CALLS: Mapping[str, Callable[..., Any]] = {
    "_codecs.encode": lambda _, *arguments: _encode(*arguments),
    "builtins.bytes": _call(lambda *arguments: not arguments, bytes),
    "builtins.bytearray": _call(_is_bytes),
    "builtins.complex": _call(_of_types(int, float, str, longest=LONGEST_TEXT), complex),
    "builtins.set": lambda _, *arguments: StandIn(),
    "builtins.frozenset": lambda _, *arguments: frozenset(*arguments),
    "builtins.range": _call(_of_types(int), range),
    "builtins.slice": _call(lambda *arguments: len(arguments) in (1, 2, 3)),
    "collections.Counter": _call(_of_types(dict), lambda *arguments: StandIn()),
    "collections.OrderedDict": _call(lambda *arguments: not arguments, OrderedDict),
    "datetime.date": _call(_of_types(bytes, str, int)),
    "datetime.datetime": _call(_of_types(bytes, str, int, StandIn)),
    "datetime.timedelta": _call(_of_types(int), datetime.timedelta),
    "datetime.timezone": _call(_of_types(datetime.timedelta, str)),
    "decimal.Decimal": _call(_of_types(str), _decimal),
    "pathlib.Path": _call(_of_types(str)),
    "pathlib.PosixPath": _call(_of_types(str)),
    "torch.Size": _call(_of_types(tuple, list), tuple),
    "torch.device": _call(_of_types(str, int, longest=64)),
    "torch.serialization._get_layout": _call(_of_types(str, longest=64)),
    "torch._utils._rebuild_tensor": _view,
    "torch._utils._rebuild_tensor_v2": _view,
    "torch._utils._rebuild_tensor_v3": _view,
    "torch._utils._rebuild_qtensor": _quantized,
    "torch._utils._rebuild_parameter": _parameter,
    "torch._utils._rebuild_parameter_with_state": _parameter,
    "torch._utils._rebuild_sparse_tensor": _call(lambda *arguments: True),
    "torch._utils._rebuild_meta_tensor_no_storage": _call(lambda *arguments: True),
    "torch._utils._rebuild_nested_tensor": _nested,
    "torch._utils._rebuild_wrapper_subclass": _call(lambda *arguments: True),
    "torch._utils._rebuild_device_tensor_from_numpy": _converted,
    "torch._utils._rebuild_device_tensor_from_cpu_tensor": _converted,
    "torch._tensor._rebuild_from_type_v2": _of_type,
    "numpy.dtype": stand_in_numpy.dtype,
    **{f"numpy.{each}.multiarray._reconstruct": stand_in_numpy.array for each in ("core", "_core")},
    **{f"numpy.{each}.multiarray.scalar": stand_in_numpy.scalar for each in ("core", "_core")},
    **{
        f"{each.__module__}.{each.__qualname__}": _generator
        for each in (
            np_random.__bit_generator_ctor,
            np_random.__generator_ctor,
            np_random.__randomstate_ctor,
        )
    },
}
BUILDS: Mapping[str, Callable[[Any, Any], None]] = {
    "collections.OrderedDict": nothing,
    "numpy.dtype": stand_in_numpy.dtype_state,
    **{path: nothing for path, call in CALLS.items() if call in (stand_in_numpy.array, _generator)},
}
OF_KEYS = frozenset(("builtins.set", "builtins.frozenset"))

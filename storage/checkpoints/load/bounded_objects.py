"""Refuses objects of a checkpoint whose reading would take memory or time that their size does not explain.

Readers restricted to data still do what a few bytes ask: a memo of gigabytes for one number, ``bytearray(n)``, a set of
``range(n)``, a tensor larger than its storage, a key whose hash takes hours. So the operations are first played with
:mod:`holdfast.bounded_pickle`: what is called here makes stand-ins, after a look at its arguments. Names that torch's
reader refuses are left to it, and its message.
"""

from __future__ import annotations

import _compat_pickle
import datetime
import decimal
import io
import math
import struct
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from numpy.random import _pickle as np_random

from holdfast.bounded_pickle import Limits, MaliciousPickleError, PickledKind, load_next

MAX_DEPTH = 1000
"""Levels; a save refuses more than 200 (``MOST_DEPTH``), and Python's own pickle about 1000."""
BYTES_PER_BYTE = 64
"""Memory that an object may take for each byte of its item."""
SPARE_BYTES = 1 << 20
"""Memory that any object may take beside."""
_GENERATOR_BYTES = 8 << 10
"""A random generator before it has its state."""
_LONGEST_TEXT = 4096
"""Characters of a path, and of a NumPy type."""
_MOST_PIECES = 5
"""Pickles in torch's one-stream format: magic number, version, system, the object, the names of its storages."""
_LIMITS = Limits(depth=MAX_DEPTH, integer_bits=None, any_key=True)
_MOST_ALIGNED = 4096
"""Bytes: no type of NumPy is aligned to more."""
_OBJECT_FLAGS = 0x07
"""Of a NumPy type: its elements are, or point to, objects."""


class _Thing:
    """Stands for something made that is of no further interest."""


class _Storage(_Thing):
    """Stands for the memory of a tensor."""

    def __init__(self, elements: int, itemsize: int) -> None:
        self.elements, self.itemsize = elements, itemsize


class _Tensor(_Thing):
    """Stands for a tensor, which may claim more elements than its memory has: views overlap."""

    def __init__(self, elements: int) -> None:
        self.elements = elements


class _Type(_Thing):
    """A NumPy type, by the bytes of an element."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes


class _UnknownNameError(Exception):
    """It names what torch's reader refuses at this place."""


def require_bounded(content: bytes, allowed: Callable[[], list[str]]) -> None:
    """Raise an error for an object that asks for more than its size explains.

    Args:
        content: as ``torch.save`` wrote it, in either of its formats; zeros may follow.
        allowed: returns the names that the script allows beside torch's and ours.

    Raises:
        MaliciousPickleError: it asks for more, or is broken.
    """
    archive = content[:2] == b"PK"
    guard = _Guard(len(content), allowed, filled=archive)
    try:
        if archive:
            guard.play(io.BytesIO(_record(content)), 1)
        else:
            guard.play(io.BytesIO(content), _MOST_PIECES)
    except _UnknownNameError:
        return


def _record(content: bytes) -> bytes:
    """Return the pickle in an archive of torch, whose records are not compressed.

    Raises:
        MaliciousPickleError: they are, or claim to be larger than the archive, or there is no pickle.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            entries = archive.infolist()
            if any(each.compress_type != zipfile.ZIP_STORED for each in entries):
                raise MaliciousPickleError("its records are compressed, which torch's are not: refused")
            if sum(each.file_size for each in entries) > len(content):
                raise MaliciousPickleError("its records claim to be larger than the archive: refused")
            [name] = [each.filename for each in entries if each.filename.split("/")[1:] == ["data.pkl"]]
            return archive.read(name)
    except (
        zipfile.BadZipFile,
        ValueError,
        RuntimeError,
        OSError,
        EOFError,
        OverflowError,
        struct.error,
    ) as error:
        raise MaliciousPickleError(f"no archive of torch: {error!s:.100}") from None


class _Guard:
    """Plays the pickles of one object."""

    def __init__(self, size: int, allowed: Callable[[], list[str]], *, filled: bool) -> None:
        self.filled = filled
        """Whether memory of tensors is read before the tensors are made, as from archives."""
        self._size, self._allowed = size, allowed
        self._left = BYTES_PER_BYTE * size + SPARE_BYTES
        self._storages: dict[Any, _Storage] = {}
        self._stored_nbytes = 0
        self._known: dict[tuple[str, str], Any] = {}

    def play(self, stream: io.BytesIO, pieces: int) -> None:
        """Play so many pickles, one behind the other."""
        for _ in range(pieces):
            load_next(stream, self._size, kinds=self._named, persistent=self._stored, limits=_LIMITS)

    def _named(self, module: str, name: str) -> Any:
        if (module, name) not in self._known:
            self._known[module, name] = self._find(module, name)
        return self._known[module, name]

    def _find(self, module: str, name: str) -> Any:
        module, name = _compat_pickle.NAME_MAPPING.get(
            (module, name), (_compat_pickle.IMPORT_MAPPING.get(module, module), name)
        )
        path = f"{module}.{name}"
        if (call := _CALLS.get(path)) is not None:
            return PickledKind(
                path, call=partial(call, self), build=_BUILDS.get(path), of_keys=path in _OF_KEYS
            )
        if path in _BUILDS:
            return PickledKind(path, build=_BUILDS[path])
        if module in ("torch", "torch.storage") and name.endswith("Storage"):
            return _Storage(0, (getattr(getattr(torch, name, None), "dtype", None) or torch.uint8).itemsize)
        if path in _of_torch() or path in _ours():
            return PickledKind(path)
        if path in self._allowed():
            return PickledKind(
                path, call=_thing, blank=_thing, blank_of=True, build=_nothing, may_refer_back=True
            )
        raise _UnknownNameError

    def spend(self, nbytes: int) -> None:
        """Count memory that is taken without bytes to explain it."""
        self._left -= nbytes
        if self._left < 0:
            raise MaliciousPickleError(
                f"it asks for more memory than {BYTES_PER_BYTE} times its {self._size} bytes: refused"
            )

    def _stored(self, identifier: Any) -> _Thing:
        if not isinstance(identifier, tuple) or len(identifier) not in (5, 6):
            raise MaliciousPickleError("it refers to an object outside of it that is no storage: refused")
        _, kind, key, _, elements = identifier[:5]
        if not isinstance(kind, _Storage) or type(elements) is not int or elements < 0:
            raise MaliciousPickleError("it has a storage of no known type or size: refused")
        if key not in self._storages:
            self._stored_nbytes += elements * kind.itemsize
            if self._stored_nbytes > self._size:
                raise MaliciousPickleError(
                    f"its tensors take {self._stored_nbytes} bytes, and it has {self._size} itself: refused"
                )
            self._storages[key] = _Storage(elements, kind.itemsize)
        return self._storages[key]


def _thing(*_: Any) -> _Thing:
    return _Thing()


def _nothing(_: Any, __: Any) -> None:
    """Take any state."""


def _call(wanted: Callable[..., bool], make: Callable[..., Any] = _thing) -> Callable[..., Any]:
    """Return a stand-in for a call whose arguments meet a condition."""

    def call(_: _Guard, *arguments: Any) -> Any:
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


def _product(sizes: Any) -> int:
    if not isinstance(sizes, tuple) or not all(type(each) is int and each >= 0 for each in sizes):
        raise MaliciousPickleError("it has a size that is no row of numbers: refused")
    return math.prod(sizes)


def _view(guard: _Guard, storage: Any, offset: Any, size: Any, stride: Any, *_: Any) -> _Tensor:
    """Check that a tensor lies in its storage, which torch would else enlarge."""
    elements = _product(size)
    _product(stride)
    if not isinstance(storage, _Storage) or type(offset) is not int or offset < 0 or len(size) != len(stride):
        raise MaliciousPickleError("it has a tensor without a storage: refused")
    last = offset + 1 + sum((s - 1) * d for s, d in zip(size, stride, strict=True)) if elements else 0
    if last > storage.elements:
        raise MaliciousPickleError(
            f"it has a tensor of {last} elements in a storage of {storage.elements}: refused"
        )
    return _Tensor(elements)


def _nested(guard: _Guard, *_: Any) -> _Thing:
    """Refuse what torch would make with sizes and offsets that it has not read yet: whatever lay in that memory."""
    if not guard.filled:
        raise MaliciousPickleError(
            "it has a nested tensor in torch's one-stream format, which torch cannot read: refused"
        )
    return _Thing()


def _quantized(guard: _Guard, storage: Any, offset: Any, size: Any, stride: Any, *_: Any) -> _Tensor:
    """Check a tensor whose memory is taken before it has its storage."""
    made = _view(guard, storage, offset, size, stride)
    guard.spend(made.elements * storage.itemsize)
    return made


def _converted(guard: _Guard, data: Any, *_: Any) -> _Thing:
    """Check a tensor that is copied, as large as it claims to be."""
    if isinstance(data, _Tensor):
        guard.spend(data.elements * torch.complex128.itemsize)
    return _Thing()


def _decimal(text: str = "0") -> decimal.Decimal:
    try:
        return decimal.Decimal(text)
    except decimal.InvalidOperation:
        raise ValueError("no decimal number") from None


def _parameter(_: _Guard, data: Any, *__: Any) -> Any:
    return data


def _of_type(guard: _Guard, make: Any, *others: Any) -> Any:
    """Play the call within ``_rebuild_from_type_v2``."""
    if (
        not isinstance(make, PickledKind)
        or make.call is None
        or len(others) != 3
        or not isinstance(others[1], tuple)
    ):
        raise MaliciousPickleError("it makes a tensor by no known function: refused")
    return make.call(*others[1])


def _generator(guard: _Guard, *_: Any) -> _Thing:
    guard.spend(_GENERATOR_BYTES)
    return _Thing()


def _array(guard: _Guard, kind: Any, shape: Any = None, *_: Any) -> _Thing:
    """Check an array that gets its shape later."""
    guard.spend(_product(shape) * np.dtype("c16").itemsize)
    return _Thing()


def _dtype(_: _Guard, text: Any = None, *__: Any) -> _Thing:
    if not isinstance(text, str) or len(text) > _LONGEST_TEXT:
        raise MaliciousPickleError("it has a NumPy type without a name: refused")
    try:
        found = np.dtype(text)
    except (SyntaxError, RuntimeWarning) as error:
        raise ValueError(str(error)) from None
    if found.hasobject:
        raise MaliciousPickleError("it has a NumPy type of objects: refused")
    return _Type(found.itemsize)


def _dtype_state(made: Any, state: Any) -> None:
    """Refuse what would make numbers pointers, or elements that lie outside of their array."""
    if not isinstance(made, _Type) or not isinstance(state, tuple) or len(state) not in (8, 9):
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


def _is_subarray(made: _Type, part: Any) -> bool:
    if not isinstance(part, tuple) or len(part) != 2 or not isinstance(part[0], _Type):
        return False
    shape = part[1] if isinstance(part[1], tuple) else (part[1],)
    sizes = all(type(each) is int and each >= 0 for each in shape)
    return sizes and part[0].nbytes * math.prod(shape) == made.nbytes


def _are_fields(made: _Type, names: Any, fields: Any) -> bool:
    if not isinstance(names, tuple) or not isinstance(fields, dict) or not set(names) <= fields.keys():
        return False
    return all(type(name) is str for name in fields) and all(
        isinstance(each, tuple)
        and len(each) in (2, 3)
        and isinstance(each[0], _Type)
        and type(each[1]) is int
        and 0 <= each[1] <= made.nbytes - each[0].nbytes
        for each in fields.values()
    )


def _is_metadata(told: Any) -> bool:
    """Return whether it is a dictionary of the script, or the unit of a time."""
    if told is None or isinstance(told, dict):
        return True
    if not isinstance(told, tuple) or len(told) != 2 or not (told[0] is None or isinstance(told[0], dict)):
        return False
    unit = told[1]
    known = isinstance(unit, tuple) and len(unit) == 4 and isinstance(unit[0], bytes | str)
    return known and all(type(each) is int for each in unit[1:])


def _scalar(_: _Guard, *arguments: Any) -> _Thing:
    if len(arguments) != 2 or not isinstance(arguments[1], bytes):
        raise MaliciousPickleError("it has a NumPy number without its bytes: refused")
    return _Thing()


_CALLS: Mapping[str, Callable[..., Any]] = {
    "_codecs.encode": lambda _, *arguments: _encode(*arguments),
    "builtins.bytes": _call(lambda *arguments: not arguments, bytes),
    "builtins.bytearray": _call(_is_bytes),
    "builtins.complex": _call(_of_types(int, float, str, longest=_LONGEST_TEXT), complex),
    "builtins.set": lambda _, *arguments: _Thing(),
    "builtins.frozenset": lambda _, *arguments: frozenset(*arguments),
    "builtins.range": _call(_of_types(int), range),
    "builtins.slice": _call(lambda *arguments: len(arguments) in (1, 2, 3)),
    "collections.Counter": _call(_of_types(dict), lambda *arguments: _Thing()),
    "collections.OrderedDict": _call(lambda *arguments: not arguments, OrderedDict),
    "datetime.date": _call(_of_types(bytes, str, int)),
    "datetime.datetime": _call(_of_types(bytes, str, int, _Thing)),
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
    "numpy.dtype": _dtype,
    **{f"numpy.{each}.multiarray._reconstruct": _array for each in ("core", "_core")},
    **{f"numpy.{each}.multiarray.scalar": _scalar for each in ("core", "_core")},
    **{
        f"{each.__module__}.{each.__qualname__}": _generator
        for each in (
            np_random.__bit_generator_ctor,
            np_random.__generator_ctor,
            np_random.__randomstate_ctor,
        )
    },
}
_BUILDS: Mapping[str, Callable[[Any, Any], None]] = {
    "collections.OrderedDict": _nothing,
    "numpy.dtype": _dtype_state,
    **{path: _nothing for path, call in _CALLS.items() if call in (_array, _generator)},
}
_OF_KEYS = frozenset(("builtins.set", "builtins.frozenset"))


@cache
def _of_torch() -> frozenset[str]:
    """Return the names that torch's reader allows by itself."""
    return frozenset(torch._weights_only_unpickler._get_allowed_globals())


@cache
def _ours() -> frozenset[str]:
    """Return the names of NumPy's classes, which are never called: types of arrays and of generators."""
    kinds: Sequence[Any] = (np.ndarray, *np_random.BitGenerators.values())
    return frozenset(f"{each.__module__}.{each.__qualname__}" for each in kinds)

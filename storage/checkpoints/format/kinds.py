"""How values that are no tensors are written as plain data, and made again: one entry per kind.

A checkpoint must not run code when it is read, so nothing here unpickles a class. Those of the script are in
:mod:`holdfast.storage.checkpoints.format.script_classes`.
"""

from __future__ import annotations

import argparse
import collections
import datetime
import decimal
import fractions
import io
import pathlib
import random
import types
import uuid
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch

from holdfast.errors import CheckpointError
from holdfast.storage.checkpoints.format import arrays, script_classes
from holdfast.storage.checkpoints.format.array_views import WINDOW
from holdfast.storage.checkpoints.format.kind import Down, Up, ValueKind
from holdfast.storage.checkpoints.format.places import key_name

PLAIN: tuple[type, ...] = (type(None), bool, int, float, complex, str, bytes)
"""Written as they are."""


def _listed(values: Iterable[Any], down: Down) -> list[Any]:
    return [down(each, str(number)) for number, each in enumerate(values)]


def _require_no_tensors(keys: Iterable[Any], where: str) -> None:
    if any(isinstance(each, torch.Tensor) for each in keys):
        raise CheckpointError(
            f"a tensor {where}: it is found by its identity, which no restored one has. Use names instead, or a list"
        )


def _pairs(mapping: Any, down: Down) -> list[list[Any]]:
    # Lists: a tuple that begins with text is taken for a node.
    _require_no_tensors(mapping, "as a key")
    return [[down(key, ""), down(each, key_name(key))] for key, each in mapping.items()]


def _made(pairs: Any, up: Up) -> dict[Any, Any]:
    return {up(key): up(each) for key, each in pairs}


def _with_attributes(mapping: Any, down: Down) -> Any:
    """Return the entries, and the attributes if any: ``_metadata`` of a module's state dictionary has versions."""
    pairs = _pairs(mapping, down)
    if not vars(mapping):
        return pairs
    return {"pairs": pairs, "attributes": [[name, down(each, "")] for name, each in vars(mapping).items()]}


def _made_ordered(written: Any, up: Up) -> Any:
    made: Any = collections.OrderedDict(_made(written["pairs"] if isinstance(written, dict) else written, up))
    if isinstance(written, dict):
        vars(made).update((name, up(each)) for name, each in written["attributes"])
    return made


_FACTORY_TYPES: tuple[type, ...] = (
    int,
    float,
    str,
    bool,
    list,
    dict,
    set,
    tuple,
    bytes,
    collections.Counter,
    collections.deque,
)
_FACTORIES: dict[str, Any] = {each.__name__: each for each in _FACTORY_TYPES}


def _factory_name(factory: Any) -> str:
    if factory is None:
        return ""
    name = getattr(factory, "__name__", "")
    if _FACTORIES.get(name) is not factory:
        raise CheckpointError(
            f"a defaultdict whose factory is {factory!r}: expected one of {', '.join(_FACTORIES)}. "
            "Return a plain dict from state_dict()"
        )
    return str(name)


def _bytes_io(value: io.BytesIO) -> tuple[bytes, int]:
    return value.getvalue(), value.tell()


def _bytes_io_again(plain: Any) -> io.BytesIO:
    made = io.BytesIO(plain[0])
    made.seek(plain[1])
    return made


_SEED = "seed_sequence"
"""Beside a bit generator's state: what its children come from (``spawn``). numpy reads past it, as older readers do."""


def _bits(value: np.random.BitGenerator) -> dict[str, Any]:
    seed = getattr(value, "seed_seq", None)
    seeds = {_SEED: dict(seed.state)} if type(seed) is np.random.SeedSequence else {}
    return {**value.state, **seeds}


def _bit_generator(state: Any) -> Any:
    kind = getattr(np.random, str(state["bit_generator"]), None)
    if not (isinstance(kind, type) and issubclass(kind, np.random.BitGenerator)):
        raise CheckpointError(f"numpy has no bit generator {state['bit_generator']!r} here")
    seed = state.get(_SEED)
    made = kind() if seed is None else kind(np.random.SeedSequence(**seed))
    made.state = state
    return made


def _random(value: random.Random) -> Any:
    return value.getstate()


def _random_again(state: Any) -> random.Random:
    made = random.Random()
    made.setstate(state)
    return made


def _torch_generator(value: torch.Generator) -> tuple[str, bytes]:
    return value.device.type, value.get_state().numpy().tobytes()


def _torch_generator_again(plain: Any) -> torch.Generator:
    made = torch.Generator(device=plain[0])
    made.set_state(torch.frombuffer(bytearray(plain[1]), dtype=torch.uint8))
    return made


def _dtype_again(name: str) -> torch.dtype:
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise CheckpointError(f"this torch has no type {name!r}")
    return found


def _offset(value: datetime.timezone) -> Any:
    """Return the offset, and the name if it has one of its own."""
    arguments = value.__getinitargs__()  # type: ignore[attr-defined]
    return arguments if len(arguments) > 1 else arguments[0]


def _timezone_again(arguments: Any) -> datetime.timezone:
    if isinstance(arguments, tuple):
        return datetime.timezone(*arguments)
    return datetime.timezone(arguments) if arguments else datetime.UTC


def _moment(value: Any) -> tuple[Any, ...]:
    """Return a time as text, which has no name of its zone: a zone with a name stands beside it."""
    plain = _zone(value).isoformat(), value.fold
    named = value.tzinfo is not None and isinstance(_offset(value.tzinfo), tuple)
    return (*plain, value.tzinfo) if named else plain


def _zone(value: datetime.datetime) -> datetime.datetime:
    if value.tzinfo is not None and type(value.tzinfo) is not datetime.timezone:
        raise CheckpointError(
            f"a time in the zone {value.tzinfo!r}: expected none, or a fixed offset such as datetime.timezone.utc"
        )
    return value


def _kind(tag: str, down: Callable[[Any], Any], up: Callable[[Any], Any]) -> ValueKind:
    """Return a kind whose data needs no more encoding than tuples, lists and dictionaries have."""
    return ValueKind(tag, lambda value, inner: inner(down(value), ""), lambda data, inner: up(inner(data)))


def _items(tag: str, up: Callable[[list[Any]], Any]) -> ValueKind:
    """Return a kind that is a series of values."""
    return ValueKind(tag, _listed, lambda data, inner: up([inner(each) for each in data]))


KINDS: dict[type, ValueKind] = {
    tuple: _items("tuple", tuple),
    # Sets have no order; a sorted one makes equal states equal bytes.
    set: ValueKind("set", lambda v, down: _listed(_ordered(v), down), lambda d, up: {up(e) for e in d}),
    frozenset: ValueKind(
        "frozenset", lambda v, down: _listed(_ordered(v), down), lambda d, up: frozenset(up(e) for e in d)
    ),
    torch.Size: _items("torch.Size", torch.Size),
    collections.deque: ValueKind(
        "deque",
        lambda v, down: (v.maxlen, _listed(v, down)),
        lambda d, up: collections.deque([up(each) for each in d[1]], d[0]),
    ),
    dict: ValueKind("dict", _pairs, _made),
    collections.OrderedDict: ValueKind("OrderedDict", _with_attributes, _made_ordered),
    collections.Counter: ValueKind("Counter", _pairs, lambda d, up: collections.Counter(_made(d, up))),
    collections.defaultdict: ValueKind(
        "defaultdict",
        lambda v, down: (_factory_name(v.default_factory), _pairs(v, down)),
        lambda d, up: collections.defaultdict(_FACTORIES[d[0]] if d[0] else None, _made(d[1], up)),
    ),
    types.SimpleNamespace: ValueKind(
        "SimpleNamespace",
        lambda v, down: _pairs(vars(v), down),
        lambda d, up: types.SimpleNamespace(**_made(d, up)),
    ),
    argparse.Namespace: ValueKind(
        "Namespace",
        lambda v, down: _pairs(vars(v), down),
        lambda d, up: _filled(argparse.Namespace(), _made(d, up)),
    ),
    bytearray: _kind("bytearray", bytes, bytearray),
    range: _kind("range", lambda v: (v.start, v.stop, v.step), lambda d: range(*d)),
    slice: _kind("slice", lambda v: (v.start, v.stop, v.step), lambda d: slice(*d)),
    io.BytesIO: _kind("BytesIO", _bytes_io, _bytes_io_again),
    decimal.Decimal: _kind("Decimal", str, decimal.Decimal),
    fractions.Fraction: _kind(
        "Fraction", lambda v: (v.numerator, v.denominator), lambda d: fractions.Fraction(*d)
    ),
    datetime.datetime: _kind("datetime", _moment, lambda d: _time(datetime.datetime, d)),
    datetime.date: _kind("date", lambda v: v.isoformat(), datetime.date.fromisoformat),
    datetime.time: _kind("time", _moment, lambda d: _time(datetime.time, d)),
    datetime.timedelta: _kind(
        "timedelta", lambda v: (v.days, v.seconds, v.microseconds), lambda d: datetime.timedelta(*d)
    ),
    datetime.timezone: _kind("timezone", _offset, _timezone_again),
    uuid.UUID: _kind("UUID", str, uuid.UUID),
    pathlib.PosixPath: _kind("Path", str, pathlib.Path),
    pathlib.PurePosixPath: _kind("PurePath", str, pathlib.PurePosixPath),
    np.ndarray: _kind("ndarray", arrays.array, arrays.array_again),
    # Its bits are a value of their own: several generators may draw from them.
    np.random.Generator: _kind("np.Generator of bits", lambda v: v.bit_generator, np.random.Generator),
    np.random.RandomState: _kind("np.RandomState", lambda v: _state_of(v), lambda d: _random_state(d)),  # noqa: PLW0108
    random.Random: _kind("Random", _random, _random_again),
    torch.Generator: _kind("torch.Generator", _torch_generator, _torch_generator_again),
    torch.dtype: _kind("torch.dtype", lambda v: str(v).removeprefix("torch."), _dtype_again),
    torch.device: _kind("torch.device", str, torch.device),
    type(Ellipsis): _kind("Ellipsis", lambda v: None, lambda d: ...),
}
_BY_TAG = {kind.tag: kind for kind in KINDS.values()}


def _filled(made: argparse.Namespace, values: dict[str, Any]) -> argparse.Namespace:
    vars(made).update(values)  # names that are no words of Python, too
    return made


def _ordered(values: Iterable[Any]) -> list[Any]:
    listed = list(values)
    _require_no_tensors(listed, "in a set")
    try:
        return sorted(listed)
    except TypeError:
        return sorted(listed, key=lambda each: (type(each).__name__, key_name(each)))


def _time(kind: Any, data: Any) -> Any:
    named = {"tzinfo": data[2]} if len(data) > 2 else {}
    return kind.fromisoformat(data[0]).replace(fold=data[1], **named)


def _state_of(value: Any) -> Any:
    """Return a tuple, as numpy's older form is; a dictionary where the bits come from another generator."""
    return value.get_state(legacy=isinstance(value._bit_generator, np.random.MT19937))


def _random_state(state: Any) -> np.random.RandomState:
    made = np.random.RandomState(_bit_generator(state) if isinstance(state, dict) else None)
    made.set_state(state)
    return made


def kind_of(value: object) -> ValueKind | None:
    """Return how ``value`` is written; None when there is no way that makes it again exactly."""
    found = KINDS.get(type(value))
    return found or next((kind for fits, kind in _FAMILIES if fits(value)), None)


def by_tag(tag: str) -> ValueKind:
    """Return the kind that wrote ``tag``.

    Raises:
        CheckpointError: a newer Holdfast wrote it.
    """
    found = _BY_TAG.get(tag)
    if found is None:
        raise CheckpointError(
            f"it holds a {tag!r}, which this version of Holdfast does not know: use a newer one"
        )
    return found


_SCALAR = _kind("np.scalar", arrays.scalar, arrays.scalar_again)
_BIT_GENERATOR = _kind("np.BitGenerator", _bits, _bit_generator)
_FAMILIES: tuple[tuple[Callable[[Any], bool], ValueKind], ...] = (
    (lambda v: isinstance(v, np.generic), _SCALAR),
    (lambda v: isinstance(v, np.random.BitGenerator), _BIT_GENERATOR),
    *script_classes.FAMILIES,
)
_BEFORE = _kind(
    "np.Generator", lambda v: _bits(v.bit_generator), lambda d: np.random.Generator(_bit_generator(d))
)
"""As a release before wrote it."""
_BY_TAG |= {kind.tag: kind for kind in (_BEFORE, WINDOW, *(kind for _, kind in _FAMILIES))}

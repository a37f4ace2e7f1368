"""Named tuples, dataclasses, enumerations and plain objects of the training script's own classes.

They are stored by the name of their class, and looked up among the modules that the process has imported already: a
checkpoint must not run code when it is read.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import sys
from collections.abc import Callable
from typing import Any

from holdfast.errors import CheckpointError
from holdfast.storage.checkpoints.format.kind import Down, Up, ValueKind


def class_name(kind: type) -> tuple[str, str]:
    """Module and name by which ``kind`` is found again.

    Raises:
        CheckpointError: it cannot be found by them: a class made inside a function.
    """
    name = (kind.__module__, kind.__qualname__)
    if _find(*name) is not kind:
        raise CheckpointError(
            f"an object of the class {'.'.join(name)}, which cannot be found by its name: define the class at the top "
            "level of a module"
        )
    return name


def _find(module: str, qualname: str) -> Any:
    found: Any = sys.modules.get(module)
    for part in qualname.split("."):
        found = getattr(found, part, None)
    return found


def find_class(name: tuple[str, str], expected: Callable[[Any], bool], what: str) -> Any:
    """Return the class that :func:`class_name` named, if it is a ``what``.

    Raises:
        CheckpointError: the script has no such class any more.
    """
    found = _find(*name)
    if not (isinstance(found, type) and expected(found)):
        raise CheckpointError(
            f"it holds a {what} of the class {'.'.join(name)}, which this script does not have: define or import it "
            "before Session.restore()"
        )
    return found


_ALIAS = "__orig_class__"
"""Note of typing in an object of a generic class that was made as ``Kind[int](...)``: no state of it."""


def _fields(value: Any) -> list[str]:
    return [each.name for each in dataclasses.fields(value)]


def _slots(kind: type) -> list[str]:
    """Return the names of all slots of a class and of those that it is derived from."""
    found = []
    for each in kind.__mro__:
        slots = vars(each).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            private = name.startswith("__") and not name.endswith("__")
            found.append(f"_{each.__name__.lstrip('_')}{name}" if private else name)
    return found


def _data_down(value: Any, down: Down) -> Any:
    """Return its fields, and, where it has others, its further attributes: those that ``__post_init__`` sets."""
    kind, names = type(value), _fields(value)
    try:
        object.__new__(kind)
    except TypeError:
        raise CheckpointError(
            f"an object of the class {kind.__module__}.{kind.__qualname__}, which is more than a dataclass "
            "(a dictionary, for example): expected a dataclass alone. Return plain values from state_dict()"
        ) from None
    fields = [(name, down(getattr(value, name), name)) for name in names if hasattr(value, name)]
    held = {name: getattr(value, name) for name in _slots(kind) if hasattr(value, name)}
    held |= getattr(value, "__dict__", {})
    more = [
        (name, down(each, name))
        for name, each in held.items()
        if name not in names
        and name not in ("__dict__", "__weakref__")
        and name != _ALIAS
        and not isinstance(getattr(kind, name, None), functools.cached_property)
    ]
    return (class_name(kind), fields, more) if more else (class_name(kind), fields)


def _data_up(data: Any, up: Up) -> Any:
    kind = find_class(data[0], dataclasses.is_dataclass, "dataclass")
    made = object.__new__(kind)
    if {name for name, _ in data[1]} - set(_fields(kind)):
        raise CheckpointError(f"the dataclass {'.'.join(data[0])} has lost fields that were saved")
    for name, each in (*data[1], *(data[2] if len(data) > 2 else ())):
        object.__setattr__(made, name, up(each))
    return made


def _named_down(value: Any, down: Down) -> Any:
    if getattr(value, "__dict__", None):
        raise CheckpointError(
            f"a namedtuple of the class {type(value).__qualname__} with further attributes "
            f"({', '.join(sorted(vars(value)))}), which would be lost: expected none. Return plain values from "
            "state_dict()"
        )
    return (
        class_name(type(value)),
        list(value._fields),
        [down(each, name) for name, each in zip(value._fields, value, strict=True)],
    )


def _named_up(data: Any, up: Up) -> Any:
    kind = find_class(
        data[0], lambda each: issubclass(each, tuple) and hasattr(each, "_fields"), "namedtuple"
    )
    if tuple(data[1]) != kind._fields:
        raise CheckpointError(
            f"the namedtuple {'.'.join(data[0])} has the fields {', '.join(kind._fields)}, and was saved with "
            f"{', '.join(data[1])}"
        )
    return kind._make([up(each) for each in data[2]])


def _member(value: enum.Enum, down: Down) -> tuple[str | None, Any]:
    """Return its name, or its value: several flags at once are no member."""
    return (value.name, None) if value.name in type(value).__members__ else (None, down(value.value, "value"))


def _enum_up(data: Any, up: Up) -> Any:
    kind = find_class(data[0], lambda each: issubclass(each, enum.Enum), "enumeration")
    if data[1] is not None:
        if data[1] not in kind.__members__:
            raise CheckpointError(f"the enumeration {'.'.join(data[0])} has no member {data[1]!r} any more")
        return kind[data[1]]
    return kind(up(data[2]))


_NAMED_TUPLE = ValueKind("namedtuple", _named_down, _named_up)
_DATACLASS = ValueKind("dataclass", _data_down, _data_up)
_ENUM = ValueKind(
    "enum",
    lambda v, down: (class_name(type(v)), *_member(v, down)),
    _enum_up,
)
_INSTANCE = ValueKind(
    "instance",
    lambda v, down: (class_name(type(v)), [(name, down(each, name)) for name, each in vars(v).items()]),
    lambda data, up: _instance_up(data, up),  # noqa: PLW0108  (defined below)
)


def _instance_up(data: Any, up: Up) -> Any:
    kind = find_class(data[0], _is_record, "plain object")
    made = object.__new__(kind)
    vars(made).update({name: up(each) for name, each in data[1]})
    return made


_NO_RECORDS = (sys.stdlib_module_names | {"builtins", "torch", "numpy"}) - {"__main__"}


def _is_record(kind: type) -> bool:
    """Return whether objects of a class are only their attributes: they are rebuilt without running any of its code."""
    return (
        kind.__module__.partition(".")[0] not in _NO_RECORDS
        and type(kind) is type
        and all(
            getattr(kind, name) is getattr(object, name)
            for name in ("__new__", "__reduce_ex__", "__reduce__", "__getstate__")
        )
        and not any(
            hasattr(kind, name) for name in ("__setstate__", "__del__", "__getnewargs__", "__getnewargs_ex__")
        )
        and all("__slots__" not in vars(each) for each in kind.__mro__[:-1])
        and all(each is object or type(each) is type for each in kind.__mro__)
    )


FAMILIES: tuple[tuple[Callable[[Any], bool], ValueKind], ...] = (
    (lambda v: isinstance(v, enum.Enum), _ENUM),
    (
        lambda v: isinstance(v, tuple) and hasattr(type(v), "_fields") and hasattr(type(v), "_make"),
        _NAMED_TUPLE,
    ),
    (lambda v: dataclasses.is_dataclass(v) and not isinstance(v, type), _DATACLASS),
    (lambda v: hasattr(v, "__dict__") and not isinstance(v, type) and _is_record(type(v)), _INSTANCE),
)
"""Whether a value is of the kind, and the kind; the first that fits."""

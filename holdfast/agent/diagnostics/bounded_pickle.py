"""Decode a pickle of plain data from any source in bounded time and memory.

Python's own unpickler, restricted to import nothing, still does what a few hundred bytes ask: a memo of gigabytes for
one number in it, an array as long as its header claims, a dictionary key whose hash takes hours because each of its
tuples holds the next one twice. So the operations are read one by one (``pickletools``, which only parses) and done
here: each makes as much as the bytes that it was read from, and their number is bounded.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable
from typing import Any

from holdfast.errors import CheckpointError

MAX_BYTES = 64 << 20
MAX_OPERATIONS = 2_000_000
MAX_INTEGER_BITS = 128
MAX_DEPTH = 64
_MARK = object()
_SCALARS = (str, bytes, int, float, bool, type(None))


class MaliciousPickleError(CheckpointError):
    """A file that claims to be plain data asks for more than that."""


def load(content: bytes, *, max_bytes: int = MAX_BYTES, max_operations: int = MAX_OPERATIONS) -> Any:
    """Return the value in ``content``: numbers, text, bytes, lists, tuples, dictionaries with plain keys.

    An object that occurs twice is one object, as in every pickle: code that walks through the value, or prints it,
    visits that object as often as it is named. At most :data:`MAX_DEPTH` levels are nested.

    Raises:
        MaliciousPickleError: it holds anything else, is broken, or asks for more than it may.
    """
    if len(content) > max_bytes:
        raise MaliciousPickleError(f"{len(content)} bytes (limit {max_bytes}): refused")
    reader = _Reader()
    try:
        for number, (operation, argument, _) in enumerate(pickletools.genops(content)):
            if number >= max_operations:
                raise MaliciousPickleError(f"more than {max_operations} operations: refused")
            do = _DO.get(operation.name)
            if do is None:
                named = reader.stack[-2:] if argument is None else [argument]
                wanted = "".join(f" {each:.60}" for each in named if isinstance(each, str))
                raise MaliciousPickleError(f"it asks for {operation.name}{wanted}: refused")
            do(reader, argument)
        return reader.result()
    except (ValueError, IndexError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise MaliciousPickleError(f"broken: {type(error).__name__} {error}") from None


class _Reader:
    """The stack machine of pickle, with what plain data needs of it."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}
        self._depths: dict[int, int] = {}
        """Of containers, by identity: so many levels at most lie in them."""

    def result(self) -> Any:
        """Return the one value that is left at the end."""
        [value] = self.stack
        if value is _MARK:
            raise ValueError("nothing but a mark")
        return value

    def push(self, value: Any) -> None:
        """Push a value that has no parts."""
        if isinstance(value, int) and value.bit_length() > MAX_INTEGER_BITS:
            raise MaliciousPickleError(f"it has an integer of {value.bit_length()} bits: refused")
        self.stack.append(value)

    def put(self, key: int) -> None:
        """Note the newest value; its number counts for nothing else."""
        self.memo[key] = self.stack[-1]

    def get(self, key: int) -> None:
        """Push a value that was noted."""
        self.stack.append(self.memo[key])

    def taken(self) -> list[Any]:
        """Take off all values since the newest mark, and the mark."""
        at = len(self.stack) - 1
        while self.stack[at] is not _MARK:
            at -= 1
            if at < 0:
                raise ValueError("there is no mark")
        values = self.stack[at + 1 :]
        del self.stack[at:]
        return values

    def last(self, count: int) -> list[Any]:
        """Take off the newest ``count`` values."""
        values = self.stack[-count:]
        if len(values) < count or any(value is _MARK for value in values):
            raise ValueError(f"{count} values are missing")
        del self.stack[-count:]
        return values

    def make(self, container: Any, parts: list[Any]) -> None:
        """Push a new container."""
        self._deepen(container, parts)
        self.stack.append(container)

    def extend(self, values: list[Any]) -> None:
        """Append to the list under the values."""
        into = self.stack[-1]
        if not isinstance(into, list):
            raise TypeError("no list")
        self._deepen(into, values)
        into.extend(values)

    def update(self, values: list[Any]) -> None:
        """Set items of the dictionary under the values."""
        into, keys = self.stack[-1], values[::2]
        if not isinstance(into, dict) or len(values) % 2:
            raise TypeError("no dictionary")
        if not all(isinstance(key, _SCALARS) for key in keys):
            raise MaliciousPickleError("it has a key that is no plain value: refused")
        self._deepen(into, values[1::2])
        into.update(zip(keys, values[1::2], strict=True))

    def _deepen(self, container: Any, parts: list[Any]) -> None:
        depth = 1 + max((self._depths.get(id(part), 0) for part in parts), default=0)
        if depth > MAX_DEPTH or any(part is container for part in parts):
            raise MaliciousPickleError(f"it is nested more than {MAX_DEPTH} levels deep: refused")
        self._depths[id(container)] = max(depth, self._depths.get(id(container), 0))


def _constant(value: Any) -> Callable[[_Reader, Any], None]:
    return lambda reader, _: reader.stack.append(value)


def _tuple(count: int) -> Callable[[_Reader, Any], None]:
    def do(reader: _Reader, _: Any) -> None:
        parts = reader.last(count) if count else []
        reader.make(tuple(parts), parts)

    return do


def _made_of_mark(kind: Callable[[list[Any]], Any]) -> Callable[[_Reader, Any], None]:
    def do(reader: _Reader, _: Any) -> None:
        parts = reader.taken()
        reader.make(kind(parts), parts)

    return do


def _dictionary(reader: _Reader, _: Any) -> None:
    values = reader.taken()
    reader.make({}, [])
    reader.update(values)


_NOTHING: Callable[[_Reader, Any], None] = lambda reader, _: None  # noqa: E731
_DO: dict[str, Callable[[_Reader, Any], None]] = {
    **dict.fromkeys(("PROTO", "FRAME", "STOP"), _NOTHING),
    **dict.fromkeys(
        (
            *("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT"),
            *("UNICODE", "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8"),
            *("SHORT_BINBYTES", "BINBYTES", "BINBYTES8"),
        ),
        _Reader.push,
    ),
    "NONE": _constant(None),
    "NEWTRUE": _constant(True),
    "NEWFALSE": _constant(False),
    "MARK": _constant(_MARK),
    "POP": lambda reader, _: reader.stack.pop(),
    "EMPTY_TUPLE": _tuple(0),
    "TUPLE1": _tuple(1),
    "TUPLE2": _tuple(2),
    "TUPLE3": _tuple(3),
    "TUPLE": _made_of_mark(tuple),
    "EMPTY_LIST": lambda reader, _: reader.make([], []),
    "LIST": _made_of_mark(list),
    "EMPTY_DICT": lambda reader, _: reader.make({}, []),
    "DICT": _dictionary,
    "APPEND": lambda reader, _: reader.extend(reader.last(1)),
    "APPENDS": lambda reader, _: reader.extend(reader.taken()),
    "SETITEM": lambda reader, _: reader.update(reader.last(2)),
    "SETITEMS": lambda reader, _: reader.update(reader.taken()),
    "MEMOIZE": lambda reader, _: reader.put(len(reader.memo)),
    **dict.fromkeys(("PUT", "BINPUT", "LONG_BINPUT"), _Reader.put),
    **dict.fromkeys(("GET", "BINGET", "LONG_BINGET"), _Reader.get),
}

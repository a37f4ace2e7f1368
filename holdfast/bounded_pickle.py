"""Decode a pickle of plain data, and of few known classes, from any source in bounded time and memory.

Python's own unpickler, restricted to import nothing, still does what a few hundred bytes ask: a memo of gigabytes for
one number in it, an array as long as its header claims, a dictionary key whose hash takes hours because each of its
tuples holds the next one twice. So the operations are read one by one (``pickletools``, which only parses) and done
here: each makes as much as the bytes that it was read from, and their number is bounded.
"""

from __future__ import annotations

import decimal
import io
import pickletools
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.errors import CheckpointError

MAX_BYTES = 64 << 20
MAX_OPERATIONS = 2_000_000
MAX_INTEGER_BITS = 128
MAX_DEPTH = 64
MAX_EQUAL_HASHES = 64
"""Keys of one dictionary with one hash: more would be made to take time with the square of their number."""
MAX_KEY_COST = 1 << 20
"""Parts of all keys that are tuples, beside so many for each byte of the file: what hashing them takes."""
KEY_COST_PER_BYTE = 8
_MOST_COST = 1 << 64
_OF_ANY_LENGTH = frozenset((int, decimal.Decimal))
"""Types whose hash is computed from all of their digits each time."""
_SAID = 60
"""Characters of a text from the pickle in a message."""
_MARK = object()
_SCALARS = (str, bytes, int, float, bool, type(None))
_LEAVES = frozenset(_SCALARS)
_BY_SECRET = frozenset((str, bytes))
"""Types whose hash depends on a secret of the process: their keys cannot be chosen to collide."""


class MaliciousPickleError(CheckpointError):
    """A file that claims to be plain data asks for more than that."""


@dataclass(frozen=True)
class PickledKind:
    """A class, or a function, that a pickle may name, and the ways in which it may use it.

    Each raises ValueError or TypeError for what it does not take, and makes no more than it is given.
    """

    name: str
    call: Callable[..., Any] | None = None
    """Called with plain arguments (REDUCE)."""
    blank: Callable[[], Any] | None = None
    """Makes an instance without attributes (NEWOBJ)."""
    blank_of: bool = False
    """The instance may be made of arguments."""
    build: Callable[[Any, Any], None] | None = None
    """Gives the instance its state (BUILD)."""
    is_key: bool = False
    """Its instances may be keys of dictionaries: their hash is of bounded cost once they have their state."""
    of_keys: bool = False
    """Its one argument is a list whose elements it hashes, as a set does."""
    may_refer_back: bool = False
    """An instance may be part of its own state."""

    def __hash__(self) -> int:
        """Return that of its name."""
        return hash(self.name)


@dataclass(frozen=True)
class Limits:
    """How much a pickle may ask for."""

    depth: int = MAX_DEPTH
    """Levels of containers in containers."""
    integer_bits: int | None = MAX_INTEGER_BITS
    """Length of an integer; None: the file's size is enough, since it is as long as its bytes."""
    any_key: bool = False
    """Keys may be anything that has a hash, such as tuples, if all hashes take time in proportion to the file."""


Kinds = Callable[[str, str], Any]
"""Returns the :class:`PickledKind` or the plain value of a module's name; raises :class:`MaliciousPickleError`."""


def load(
    content: bytes,
    *,
    kinds: Kinds | None = None,
    max_bytes: int = MAX_BYTES,
    max_operations: int | None = MAX_OPERATIONS,
) -> Any:
    """Return the value in ``content``: numbers, text, bytes, lists, tuples, dictionaries with plain keys.

    An object that occurs twice is one object, as in every pickle: code that walks through the value, or prints it,
    visits that object as often as it is named. At most :data:`MAX_DEPTH` levels are nested.

    Args:
        content: the pickle.
        kinds: classes that it may name beside; None: none.
        max_bytes: limit of its size.
        max_operations: limit of its operations; None: that of its size is enough.

    Raises:
        MaliciousPickleError: it holds anything else, is broken, or asks for more than it may.
    """
    if len(content) > max_bytes:
        raise MaliciousPickleError(f"{len(content)} bytes (limit {max_bytes}): refused")
    return load_next(io.BytesIO(content), len(content), kinds=kinds, max_operations=max_operations)


def load_next(
    stream: io.BytesIO,
    size: int,
    *,
    kinds: Kinds | None = None,
    persistent: Callable[[Any], Any] | None = None,
    limits: Limits = Limits(),
    max_operations: int | None = None,
) -> Any:
    """Return the value of the next pickle in ``stream``, which is then behind it.

    Args:
        stream: the pickle, and anything behind it.
        size: bytes of the file, which explain what the pickle may ask for.
        kinds: classes that it may name beside; None: none.
        persistent: returns what an identifier of an object outside the pickle stands for; None: there is none.
        limits: of what it may hold.
        max_operations: limit of its operations; None: that of its size is enough.

    Raises:
        MaliciousPickleError: it holds anything else, is broken, or asks for more than it may.
    """
    reader = _Reader(kinds, size, limits, persistent)
    known = _DO if kinds is None else _DO_WITH_KINDS
    try:
        for number, (operation, argument, _) in enumerate(pickletools.genops(stream)):
            if number == max_operations:
                raise MaliciousPickleError(f"more than {max_operations} operations: refused")
            do = known.get(operation.name)
            if do is None:
                named = reader.stack[-2:] if argument is None else [argument]
                wanted = "".join(f" {each:.{_SAID}}" for each in named if isinstance(each, str))
                raise MaliciousPickleError(f"it asks for {operation.name}{wanted}: refused")
            do(reader, argument)
        return reader.result()
    except (ValueError, IndexError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise MaliciousPickleError(f"broken: {type(error).__name__} {error!s:.{2 * _SAID}}") from None


class _Reader:
    """The stack machine of pickle, with what plain data needs of it."""

    def __init__(
        self, kinds: Kinds | None, most: int, limits: Limits, persistent: Callable[[Any], Any] | None
    ) -> None:
        """Read a pickle of ``most`` bytes."""
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}
        self._kinds = kinds
        self._most = most
        self._limits = limits
        self._persistent = persistent
        self._costs: dict[int, int] = {}
        """Of tuples, by identity: how many parts are hashed with them."""
        self._key_cost = 0
        self._depths: dict[int, int] = {}
        """Of containers, by identity: so many levels at most lie in them."""
        self._fetched: set[int] = set()
        """Containers that were named again: they are whole. What grew after that could reach any depth, or itself."""
        self._made: dict[int, PickledKind] = {}
        """Kinds of instances, by identity."""
        self._hashes: dict[int, dict[int, int]] = {}
        """Of dictionaries, by identity: how many keys were given that have a hash."""

    def result(self) -> Any:
        """Return the one value that is left at the end."""
        [value] = self.stack
        if value is _MARK:
            raise ValueError("nothing but a mark")
        return value

    def push(self, value: Any) -> None:
        """Push a value that has no parts."""
        self.stack.append(value)

    def push_integer(self, value: int) -> None:
        """Push a number of bounded length."""
        bits = self._limits.integer_bits
        if bits is not None and value.bit_length() > bits:
            raise MaliciousPickleError(f"it has an integer of {value.bit_length()} bits: refused")
        self.stack.append(value)

    def put(self, key: int) -> None:
        """Note the newest value. A number beyond all operations asks the stock unpickler for memory."""
        if key >= self._most:
            raise MaliciousPickleError(f"its memo has {key} places: refused")
        self.memo[key] = self.stack[-1]

    def get(self, key: int) -> None:
        """Push a value that was noted."""
        value = self.memo[key]
        if id(value) in self._depths:
            self._fetched.add(id(value))
        self.stack.append(value)

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

    def make(self, container: Any, parts: Sequence[Any], kind: PickledKind | None = None) -> None:
        """Push a new container, or an instance of a kind."""
        known, depth = id(container), 1
        for part in parts:
            if type(part) not in _LEAVES:
                depth = max(depth, 1 + self._depths.get(id(part), 0))
        self._require_shallow(depth)
        if self._limits.any_key:
            self._costs.pop(known, None)
            if type(container) in (tuple, frozenset):
                self._costs[known] = min(1 + sum(map(self._cost, parts)), _MOST_COST)
        # An earlier one may have had its identity: nothing of that counts.
        self._depths[known] = depth
        self._fetched.discard(known)
        self._hashes.pop(known, None)
        if kind is not None:
            self._made[known] = kind
        elif known in self._made:
            del self._made[known]
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
        for key in keys:
            if type(key) not in _LEAVES and not (self._limits.any_key or self._is_key(key)):
                raise MaliciousPickleError("it has a key that is no plain value: refused")
        self._afford(keys)
        self._deepen(into, values[1::2])
        self._spread(into, keys)
        into.update(zip(keys, values[1::2], strict=True))

    def named(self, module: str, name: str) -> None:
        """Push what a name of a module stands for."""
        if self._kinds is None or not (isinstance(module, str) and isinstance(name, str)):
            raise TypeError("no name of a class")
        self.stack.append(self._kinds(module, name))

    def call(self) -> None:
        """Call the kind under the arguments."""
        kind, arguments = self.last(2)
        if not isinstance(kind, PickledKind) or kind.call is None or not isinstance(arguments, tuple):
            raise MaliciousPickleError(f"it calls {_said(kind)}: refused")
        if kind.of_keys and arguments:
            if len(arguments) != 1 or type(arguments[0]) is not list:
                raise MaliciousPickleError(f"it makes a {kind.name} of something else than a list: refused")
            self._afford(arguments[0])
            self._spread(arguments[0], arguments[0])
        self._hold(kind, kind.call(*arguments), arguments)

    def new(self) -> None:
        """Make an instance of the kind under its arguments."""
        kind, arguments = self.last(2)
        is_known = isinstance(kind, PickledKind) and kind.blank is not None and isinstance(arguments, tuple)
        if not is_known or (arguments and not kind.blank_of):
            raise MaliciousPickleError(f"it makes a {_said(kind)}: refused")
        self._hold(kind, kind.blank(*arguments), arguments)

    def persist(self) -> None:
        """Push what the identifier on top stands for."""
        [identifier] = self.last(1)
        if self._persistent is None:
            raise MaliciousPickleError("it refers to an object outside of it: refused")
        self.make(self._persistent(identifier), [])

    def build(self) -> None:
        """Give the instance under its state that state."""
        [state] = self.last(1)
        made = self.stack[-1]
        kind = self._made.get(id(made))
        if kind is None or kind.build is None:
            raise MaliciousPickleError(f"it sets attributes of a {type(made).__name__}: refused")
        self._deepen(made, [state])
        kind.build(made, state)

    def _hold(self, kind: PickledKind, made: Any, parts: Sequence[Any]) -> None:
        if type(made) in _LEAVES:
            self.stack.append(made)
        else:
            self.make(made, parts, kind)

    def _is_key(self, key: Any) -> bool:
        kind = self._made.get(id(key))
        return kind is not None and kind.is_key

    def _cost(self, part: Any) -> int:
        """Return how many parts are hashed with this one, and words of a number."""
        if type(part) in _OF_ANY_LENGTH:
            return sys.getsizeof(part) // 8
        return 1 if type(part) in _LEAVES else self._costs.get(id(part), 1)

    def _afford(self, keys: Sequence[Any]) -> None:
        """Raise an error for keys whose hashes take longer than the file's size explains."""
        if not self._limits.any_key:
            return
        self._key_cost += sum(map(self._cost, keys))
        if self._key_cost > MAX_KEY_COST + KEY_COST_PER_BYTE * self._most:
            raise MaliciousPickleError("its keys take too long to hash: refused")

    def _require_shallow(self, depth: int) -> None:
        if depth > self._limits.depth:
            raise MaliciousPickleError(f"it is nested more than {self._limits.depth} levels deep: refused")

    def _spread(self, into: Any, keys: Sequence[Any]) -> None:
        """Raise an error for keys that were chosen to have one hash, however many at a time they come."""
        chosen = [hash(key) for key in keys if type(key) not in _BY_SECRET]
        if not chosen:
            return
        known = self._hashes.setdefault(id(into), {})
        for each in chosen:
            known[each] = number = known.get(each, 0) + 1
            if number > MAX_EQUAL_HASHES:
                raise MaliciousPickleError("its keys were chosen to have one hash: refused")

    def _deepen(self, container: Any, parts: Sequence[Any]) -> None:
        made = self._made.get(id(container))
        if made is not None and made.may_refer_back:
            return
        if id(container) in self._fetched:
            raise MaliciousPickleError("it changes a container that it has named again: refused")
        depths = self._depths
        depth = depths.get(id(container), 1)
        for part in parts:
            if type(part) not in _LEAVES:
                if part is container:
                    raise MaliciousPickleError("a container holds itself: refused")
                depth = max(depth, 1 + depths.get(id(part), 0))
        self._require_shallow(depth)
        depths[id(container)] = depth


def _said(kind: Any) -> str:
    return kind.name if isinstance(kind, PickledKind) else type(kind).__name__


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
            *("BININT", "BININT1", "BININT2", "FLOAT", "BINFLOAT"),
            *("UNICODE", "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8"),
            *("SHORT_BINBYTES", "BINBYTES", "BINBYTES8"),
        ),
        _Reader.push,
    ),
    **dict.fromkeys(("INT", "LONG", "LONG1", "LONG4"), _Reader.push_integer),
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
_DO_WITH_KINDS: dict[str, Callable[[_Reader, Any], None]] = {
    **_DO,
    "GLOBAL": lambda reader, argument: reader.named(*argument.split(" ", 1)),
    "STACK_GLOBAL": lambda reader, _: reader.named(*reader.last(2)),
    "REDUCE": lambda reader, _: reader.call(),
    "NEWOBJ": lambda reader, _: reader.new(),
    "BUILD": lambda reader, _: reader.build(),
    "BINPERSID": lambda reader, _: reader.persist(),
}

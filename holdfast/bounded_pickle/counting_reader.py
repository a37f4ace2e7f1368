"""The stack machine of pickle, which counts what it is asked to make."""

from __future__ import annotations

import decimal
import sys
from collections.abc import Callable, Sequence
from typing import Any

from holdfast.bounded_pickle.limits import Kinds, Limits, MaliciousPickleError, PickledKind

MAX_EQUAL_HASHES = 64
"""Keys of one dictionary with one hash: more would be made to take time with the square of their number."""
MAX_KEY_COST = 1 << 20
"""Parts of all keys that are tuples, beside so many for each byte of the file: what hashing them takes."""
KEY_COST_PER_BYTE = 8
_MOST_COST = 1 << 64
_OF_ANY_LENGTH = frozenset((int, decimal.Decimal))
"""Types whose hash is computed from all of their digits each time."""
MARK = object()
_SCALARS = (str, bytes, int, float, bool, type(None))
_LEAVES = frozenset(_SCALARS)
_BY_SECRET = frozenset((str, bytes))
"""Types whose hash depends on a secret of the process: their keys cannot be chosen to collide."""


class CountingReader:
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
        if value is MARK:
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
        while self.stack[at] is not MARK:
            at -= 1
            if at < 0:
                raise ValueError("there is no mark")
        values = self.stack[at + 1 :]
        del self.stack[at:]
        return values

    def last(self, count: int) -> list[Any]:
        """Take off the newest ``count`` values."""
        values = self.stack[-count:]
        if len(values) < count or any(value is MARK for value in values):
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
            raise MaliciousPickleError(f"it calls {_type_name(kind)}: refused")
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
            raise MaliciousPickleError(f"it makes a {_type_name(kind)}: refused")
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


def _type_name(kind: Any) -> str:
    return kind.name if isinstance(kind, PickledKind) else type(kind).__name__

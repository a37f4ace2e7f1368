"""The names of a checkpoint: those that follow ``prefix/<rank>rest`` on many ranks are one entry, not ten thousand."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import TensorProperties

from holdfast.errors import CheckpointError
from holdfast.storage.checkpoints.format.describe import ItemKind

LEAST = 8
"""Fewer names of a rule are written one by one."""

_RULE = re.compile(r"(.*?/)(0|[1-9]\d{0,8})((?:\..*)?)", re.DOTALL)

Path = tuple[str | int | None, ...]


@dataclass(frozen=True)
class Entry:
    """One name, or the names ``first + number + rest`` of ``count`` consecutive numbers."""

    first: str
    rest: str = ""
    low: int = 0
    count: int = 0
    """0: the one name ``first``."""
    size: torch.Size | None = None
    """Of the whole tensor; None for an object."""
    properties: TensorProperties | None = None
    path: Path | None = None
    """Where it is in the nested state; None stands for ``first + number``."""

    def name(self, member: int) -> str:
        """Return the name with that number."""
        return f"{self.first}{member}{self.rest}" if self.count else self.first

    def path_of(self, member: int) -> tuple[str | int, ...] | None:
        """Return where that one is in the nested state."""
        if self.path is None:
            return None
        return tuple(f"{self.first}{member}" if each is None else each for each in self.path)

    @property
    def members(self) -> range:
        """Its numbers; 0 alone for the one name."""
        return range(self.low, self.low + self.count) if self.count else range(1)

    @property
    def dims(self) -> int:
        """Dimensions of the tensor; 0 for an object."""
        return len(self.size) if self.size is not None else 0


def gather(kinds: Sequence[ItemKind], paths: Mapping[str, Any]) -> tuple[list[Entry], list[tuple[int, int]]]:
    """Return entries for all names, and for each of ``kinds`` its entry and number there.

    Raises:
        CheckpointError: a key in the nested state is neither text nor a number.
    """
    alike: defaultdict[tuple[Any, ...], list[tuple[int, int]]] = defaultdict(list)
    for number, kind in enumerate(kinds):
        if match := _RULE.fullmatch(kind.fqn):
            first, whole = match[1], match[1] + match[2]
            path = checked(kind.fqn, paths.get(kind.fqn))
            inner = None if path is None else tuple(None if each == whole else each for each in path)
            alike[first, match[3], inner, kind.size, _key(kind.properties)].append((int(match[2]), number))
    entries: list[Entry] = []
    where: list[tuple[int, int] | None] = [None] * len(kinds)
    for (first, rest, inner, _, _), found in alike.items():
        for run in _consecutive(sorted(found)):
            if len(run) < LEAST:
                continue
            for member, number in run:
                where[number] = (len(entries), member)
            kind = kinds[run[0][1]]
            entries.append(Entry(first, rest, run[0][0], len(run), kind.size, kind.properties, inner))
    for number, kind in enumerate(kinds):
        if where[number] is None:
            where[number] = (len(entries), 0)
            path = checked(kind.fqn, paths.get(kind.fqn))
            entries.append(Entry(kind.fqn, size=kind.size, properties=kind.properties, path=path))
    return entries, [each for each in where if each is not None]


class Names:
    """Finds names among entries."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        self.entries = entries
        self._plain = {each.first: number for number, each in enumerate(entries) if not each.count}
        self._rules: defaultdict[tuple[str, str], list[tuple[int, int]]] = defaultdict(list)
        for number, each in enumerate(entries):
            if each.count:
                self._rules[each.first, each.rest].append((each.low, number))
        for rules in self._rules.values():
            rules.sort()

    def find(self, name: str) -> tuple[int, int] | None:
        """Number of the entry that has ``name``, and its number there."""
        if (number := self._plain.get(name)) is not None:
            return number, 0
        if not (match := _RULE.fullmatch(name)):
            return None
        rules, member = self._rules.get((match[1], match[3]), []), int(match[2])
        at = bisect_right(rules, (member, len(self.entries))) - 1
        if at < 0 or member not in self.entries[rules[at][1]].members:
            return None
        return rules[at][1], member

    def __iter__(self) -> Iterator[str]:
        """Yield all names."""
        for entry in self.entries:
            for member in entry.members:
                yield entry.name(member)

    def __len__(self) -> int:
        """Return the number of names."""
        return sum(max(1, entry.count) for entry in self.entries)


def written(entries: Iterable[Entry]) -> dict[str, Any]:
    """Return the entries as JSON takes them."""
    known: dict[object, int] = {}
    properties: list[list[Any]] = []
    rows = []
    for each in entries:
        number = -1
        if each.properties is not None:
            number = known.setdefault(_key(each.properties), len(known))
            if number == len(properties):
                properties.append(_as_list(each.properties))
        size = None if each.size is None else list(each.size)
        rows.append([each.first, each.rest, each.low, each.count, size, number, each.path])
    return {"properties": properties, "entries": rows}


def read(table: Mapping[str, Any]) -> list[Entry]:
    """Return the entries of what :func:`written` gave.

    Raises:
        ValueError, KeyError, TypeError, IndexError, AttributeError: it is something else.
    """
    properties = [_properties(*each) for each in table["properties"]]
    return [
        Entry(
            str(first),
            str(rest),
            int(low),
            int(count),
            None if size is None else torch.Size(size),
            None if size is None else properties[number],
            None if path is None else tuple(path),
        )
        for first, rest, low, count, size, number, path in table["entries"]
    ]


def checked(name: str, path: object) -> tuple[str | int, ...] | None:
    """Return a place in the nested state, as far as JSON can express it.

    Raises:
        CheckpointError: a key is neither text nor a number.
    """
    if path is None:
        return None
    found = tuple(path) if isinstance(path, (tuple, list)) else (path,)
    if bad := [each for each in found if not isinstance(each, (str, int, float))]:
        raise CheckpointError(
            f"state {name!r}: the key {bad[0]!r} on its way is a {type(bad[0]).__name__}, expected text or a number."
        )
    return tuple(str.__str__(each) if isinstance(each, str) else each for each in found)


def _consecutive(found: Sequence[tuple[int, int]]) -> Iterator[list[tuple[int, int]]]:
    run: list[tuple[int, int]] = []
    for each in found:
        if run and each[0] != run[-1][0] + 1:
            yield run
            run = []
        run.append(each)
    if run:
        yield run


def _key(properties: TensorProperties | None) -> object:
    if properties is None:
        return None
    return tuple(map(str, _as_list(properties)))


def _as_list(properties: TensorProperties) -> list[Any]:
    return [
        str(properties.dtype).removeprefix("torch."),
        str(properties.layout).removeprefix("torch."),
        bool(properties.requires_grad),
        str(properties.memory_format).removeprefix("torch."),
        bool(properties.pin_memory),
    ]


def _properties(dtype: str, layout: str, grad: bool, memory: str, pinned: bool) -> TensorProperties:
    found = [getattr(torch, each) for each in (dtype, layout, memory)]
    for each, kind in zip(found, (torch.dtype, torch.layout, torch.memory_format), strict=True):
        if not isinstance(each, kind):
            raise ValueError(f"{each!r} is no {kind.__name__}")
    return TensorProperties(found[0], found[1], grad, found[2], pinned)

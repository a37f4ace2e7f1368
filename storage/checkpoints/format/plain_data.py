"""Whether a value is plain data to its last leaf: then it is kept as it is, however much it is, and pickled once.

Lists, tuples and dictionaries of numbers and text come by the hundred thousand: tokens, pairs of positions, a table of
words. They are looked at a level at a time, in loops of C; code of our own runs for each level, not for each value.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

from holdfast.storage.checkpoints.format.kinds import PLAIN

SERIES = frozenset((list, tuple))
CONTAINERS = SERIES | {dict}
_LEAVES = frozenset(PLAIN)
_ALL = _LEAVES | CONTAINERS


def kinds_inside(value: Any, most_depth: int) -> set[type] | None:
    """Return the types of a container and of all inside; None when one is not plain, or something contains itself.

    Args:
        value: a list, tuple or dictionary.
        most_depth: the most containers that may be nested.
    """
    found: set[type] = set()
    seen: set[int] = set()
    again = False
    level: Sequence[Any] = (value,)
    for _ in range(most_depth + 1):
        kinds = set(map(type, level))
        if not kinds <= _ALL:
            return None
        found |= kinds
        if kinds.isdisjoint(CONTAINERS):
            return found if not again or _ends(value, most_depth) else None
        containers = _containers(level, kinds)
        if not seen.isdisjoint(containers):
            again = True
            containers = {at: each for at, each in containers.items() if at not in seen}
        seen.update(containers)
        level = _inside(containers.values(), kinds)
    return None


def is_flat(value: Any) -> bool:
    """Return whether nothing but plain values lies directly inside a series."""
    return set(map(type, value)) <= _LEAVES


def holds_dict(series: Any) -> bool:
    """Return whether a dictionary lies in plain data, looked for in lists and tuples."""
    level: list[Any] = [series]
    while True:
        kinds = set(map(type, level))
        if dict in kinds:
            return True
        if kinds.isdisjoint(SERIES):
            return False
        level = _inside(_containers(level, kinds).values(), kinds)


def _containers(level: Sequence[Any], kinds: set[type]) -> dict[int, Any]:
    """Return the containers of a level by identity: each once."""
    found = level if kinds <= CONTAINERS else [each for each in level if type(each) in CONTAINERS]
    return dict(zip(map(id, found), found, strict=True))


def _inside(containers: Iterable[Any], kinds: set[type]) -> list[Any]:
    """Return all that lies directly in them; keys too."""
    if dict not in kinds:
        return list(chain.from_iterable(containers))
    listed = list(containers)
    dicts = [each for each in listed if type(each) is dict]
    rest = [each for each in listed if type(each) is not dict]
    values = chain.from_iterable(map(dict.values, dicts))
    return list(chain(chain.from_iterable(rest), chain.from_iterable(dicts), values))


def _ends(value: Any, most_depth: int) -> bool:
    """Return whether plain data that holds the same container on two levels is of at most this depth: not endless."""
    depths: dict[int, int] = {}

    def depth(each: Any) -> int:
        if type(each) not in CONTAINERS:
            return 0
        if id(each) not in depths:
            depths[id(each)] = most_depth  # inside of itself: too deep
            inside = chain(each, each.values()) if type(each) is dict else each
            depths[id(each)] = 1 + max(map(depth, inside), default=0)
        return depths[id(each)]

    return depth(value) <= most_depth

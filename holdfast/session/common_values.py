"""Plain values of optimizers, which are restored at another number of ranks only where the ranks had the same.

A tensor of a parameter comes back by its elements, whichever rank saved them. A plain number beside it (a norm, a
scale, the ``d`` of a learning-rate-free method) has no elements: if ranks had different ones, none of them is that of
ranks which have other parts now.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from holdfast.errors import CheckpointError
from holdfast.storage.checkpoints.format import structure
from holdfast.storage.checkpoints.format.structure import Node
from holdfast.storage.checkpoints.load.exchange import Exchange

_KINDS = ("state", "groups", "more")
"""Trees of an optimizer."""
_TENSORS = frozenset(("@ref", "@same", "@raw", "@layout", "@local", "@object", "@opaque"))
_COMPARED = 8
"""Ranks with different values whose values are exchanged, to name one that differs."""
Values = dict[str, str]


def trees_of(optimizers: Sequence[str], ranks: Sequence[int], names: Mapping[str, Any]) -> list[str]:
    """Return names of the trees that ``ranks`` saved of ``optimizers``; ``names``: all of the checkpoint."""
    every = (
        f"{structure.key(rank)}.{name}/{kind}" for rank in ranks for name in optimizers for kind in _KINDS
    )
    return [each for each in every if each in names]


def require_common(optimizers: Sequence[str], trees: Mapping[str, Node], exchange: Exchange) -> None:
    """Ensure that all ranks that saved had the same plain values, where they had the same parameters. Collective.

    Args:
        optimizers: names of the parts.
        trees: of the checkpoint, by full name: each rank that loads has those of some ranks that saved, and together
            they have those of all.
        exchange: the ranks that load.

    Raises:
        CheckpointError: two had another value; names its path. On every rank.
    """
    mine: dict[tuple[str, str], dict[int, Values]] = {}
    for name in optimizers:
        for rank in structure.saved_ranks(trees):
            params, values = _of(name, rank, trees)
            mine.setdefault((name, _digest(params)), {})[rank] = values
    gathered = exchange.everywhere(
        {
            key: _lowest((_digest(values), rank) for rank, values in found.items())
            for key, found in mine.items()
        }
    )
    for key in sorted({key for each in gathered for key in each}):
        by_value = _lowest(pair for each in gathered for pair in each.get(key, {}).items())
        if len(by_value) > 1:
            ranks = sorted(by_value.values())[:_COMPARED]
            held = exchange.everywhere({each: mine[key][each] for each in ranks if each in mine.get(key, {})})
            _require_equal({rank: values for each in held for rank, values in each.items()})


def _lowest(found: Iterable[tuple[str, int]]) -> dict[str, int]:
    """Return the lowest rank that has each digest."""
    return dict(sorted(found, reverse=True))


def _require_equal(by_rank: Mapping[int, Values]) -> None:
    """Refuse a path of which two ranks have another value.

    What one rank has and another has not is no difference: a parameter without a gradient there.
    """
    known: dict[str, tuple[int, str]] = {}
    for rank, values in sorted(by_rank.items()):
        for path, value in values.items():
            first, before = known.setdefault(path, (rank, value))
            if before != value:
                raise CheckpointError(
                    f"{path}: it differs from rank to rank ({before} on rank {first}, {value} on rank {rank}), and was "
                    "saved by another number of ranks than there are now. Make it equal on all ranks in the "
                    "optimizer's step (an all_reduce), restore at the number of ranks that saved it, or give "
                    "holdfast.Part(..., strict=False) to take that of one rank"
                )


def _of(name: str, rank: int, trees: Mapping[str, Node]) -> tuple[list[str], Values]:
    """Return names of the parameters that a rank had in an optimizer, and the plain values by path."""
    state, groups, more = (trees.get(f"{structure.key(rank)}.{name}/{kind}") for kind in _KINDS)
    params = [each for group in groups or () for each in group["params"]]
    values: Values = {}
    for param, node in ((state or {}).get("params") or {}).items():
        values |= _plain(node, f"{name}.state.{param}")
    for key, node in (state or {}).get("shared") or ():
        values |= _plain(node, f"{name}.state.{key}")
    for number, group in enumerate(groups or ()):
        options = {option: node for option, node in group.items() if option not in ("params", "param_names")}
        values |= _plain(options, f"{name}.param_groups.{number}")
    return params, values | _plain(more, name)


def _plain(node: Node, path: str) -> Values:
    return dict(_walk(node, path, set()))


def _walk(node: Node, path: str, above: set[int]) -> Iterator[tuple[str, str]]:
    """Yield path and value of each plain value. By their bits: NaN is like itself, and zeros have signs."""
    if not isinstance(node, dict | list | tuple):
        yield path, repr(node)
        return
    if id(node) in above:
        return
    above.add(id(node))
    if isinstance(node, tuple) and node and isinstance(node[0], str):
        if node[0] not in _TENSORS:
            for each in node[1:]:
                yield from _walk(each, path, above)
    else:
        for key, each in node.items() if isinstance(node, dict) else enumerate(node):
            yield from _walk(each, f"{path}.{key}", above)


def _digest(value: Any) -> str:
    return hashlib.sha256(repr(value).encode()).hexdigest()[:32]

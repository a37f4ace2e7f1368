"""The structure of a saved state, as plain data beside the tensors: it alone decides what a load returns.

``torch.distributed.checkpoint`` loads into the state that a script has just made and drops what that state does not
name. A state that grew, shrank or changed its types since the script began is not the fresh one. So each rank saves,
for every part of its state, a tree of nodes that describes the part:

- ``None``, booleans, numbers, text and bytes are themselves;
- lists, tuples and dictionaries of nothing else, to the last leaf, are ``("@plain", value)``, pickled as they are: what
  is shared inside of them, or with others of the part, stays shared; another list is a list, and another dictionary
  with text keys a dictionary;
- a tensor that is an item of the checkpoint is ``("@ref", name, device, placements)``, and its strides where it does
  not lie row by row; one that lies in the tree itself
  (small, of changing shape, of a layout that items cannot have) is ``("@raw", ...)`` or ``("@layout", ...)`` of
  :mod:`~holdfast.storage.checkpoints.format.raw_tensors`; one with attributes that the script has set is
  ``("@attributes", tensor, attributes)``;
- anything else is ``(tag, data)`` of :mod:`~holdfast.storage.checkpoints.format.kinds`.

One container or object in two places of a part is one node in two places of the tree, which pickle keeps: it comes back
as one. Readers of releases before make two equal ones of it. Stock torch finds its items under the first name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

Node = Any

PREFIX = "structure/"
RANDOM = "rng/"
"""Before the names of random states."""
REPLACED_PREFIXES = (PREFIX, RANDOM)
"""Objects of such names are never changed: others take their place."""
_LEAVES = frozenset(("@plain", "@ref", "@same"))
"""Tags of nodes without others in them; plain data is the user's own, whatever it looks like."""
ITEMS = frozenset(("@ref", "@same"))
"""Tags of tensors that are items of the checkpoint."""
OWN = "own/"
"""Before the names of tensors that one rank alone has."""


def key(rank: int) -> str:
    """Name of a rank's structure in a checkpoint."""
    return f"{PREFIX}{rank}"


def is_tree(name: str) -> bool:
    """Return whether the item of this name is a tree."""
    return name.startswith(PREFIX)


def saved_ranks(names: Iterable[str]) -> list[int]:
    """Return the ranks whose structure is among a checkpoint's flat key ``names``."""
    return sorted({int(each.removeprefix(PREFIX).split(".")[0]) for each in names if each.startswith(PREFIX)})


def own_name(rank: int, name: str) -> str:
    """Name of an item that ``rank`` alone has."""
    return f"{OWN}{rank}.{name}"


def plain_name(name: str) -> str:
    """Return the name without the rank that alone has it."""
    return name.split(".", 1)[1] if name.startswith(OWN) else name


def refs(node: Node) -> Iterator[tuple[str, str, Any]]:
    """Name, device and placements of every item that a tree refers to."""
    return ((each[1], each[2], each[3]) for tag, each in tagged(node) if tag == "@ref")


def strides(node: Node) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Name and strides of every item that did not lie in memory row by row.

    Sums of products come out different in the last bits where a matrix lies the other way.
    """
    return ((each[1], tuple(each[4])) for tag, each in tagged(node) if tag == "@ref" and len(each) > 4)


def aliases(node: Node) -> Iterator[str]:
    """Yield the names of items whose elements another item of the same part has as well: nothing refers to them."""
    return (each[1] for tag, each in tagged(node) if tag == "@same")


def tagged(node: Node, seen: set[int] | None = None) -> Iterator[tuple[str, Any]]:
    """Yield the nodes of a tree that begin with a text, with it: their tags, and what looks like one.

    What is in several places of the tree is looked at once, however often it doubles.
    """
    seen = set() if seen is None else seen
    if not isinstance(node, tuple | list | dict) or id(node) in seen:
        return
    seen.add(id(node))
    if isinstance(node, tuple) and node and isinstance(node[0], str):
        yield node[0], node
        if node[0] in _LEAVES:
            return
    for each in node.values() if isinstance(node, dict) else node:
        yield from tagged(each, seen)

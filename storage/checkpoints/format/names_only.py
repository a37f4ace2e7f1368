"""The names of a checkpoint's ``.metadata``, without torch, in bounds, running nothing that a pickle may contain."""

from __future__ import annotations

import re
from typing import Any

from holdfast import bounded_pickle
from holdfast.bounded_pickle import MaliciousPickleError, PickledKind
from holdfast.errors import CheckpointError

_OTHERS = ("rng/", "own/", "structure/")
"""Items of single ranks."""


class _Anything:
    """Stands for every object of the pickle."""

    def __init__(self, *_: Any) -> None:
        self.state: Any = None


def _build(instance: _Anything, state: Any) -> None:
    instance.state = state


def _dictionary() -> dict[Any, Any]:
    return {}  # a copy of what it is given could be of any size


def _list() -> list[Any]:
    return []


_STUB = PickledKind("an object", call=_Anything, blank=_Anything, build=_build, is_key=True)
_DICTIONARY = PickledKind("OrderedDict", call=_dictionary)
_LIST = PickledKind("list", call=_list)


def _kind(module: str, name: str) -> PickledKind:
    return {"OrderedDict": _DICTIONARY, "list": _LIST}.get(name, _STUB)


def names_in(metadata: bytes, where: str) -> frozenset[str]:
    """Return the full names of all items of a checkpoint, by the content of its ``.metadata``.

    Args:
        metadata: the content.
        where: names the checkpoint in errors.

    Raises:
        CheckpointError: it is no metadata of torch.distributed.checkpoint.
    """
    try:
        found = bounded_pickle.load(metadata, kinds=_kind, max_operations=None)
        items = found.state["state_dict_metadata"]
    except MaliciousPickleError as error:
        raise CheckpointError(f"{where}: its .metadata cannot be read: {error}.") from error
    except (AttributeError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"{where}: its .metadata cannot be read: it holds no checkpoint's metadata."
        ) from error
    if not isinstance(items, dict):
        raise CheckpointError(f"{where}: its .metadata cannot be read: it holds no checkpoint's metadata.")
    return frozenset(name for name in items if isinstance(name, str))


def parts_of(names: frozenset[str]) -> list[str]:
    """Return the parts that the items belong to: what comes before the first dot; of a tree, what it describes."""
    plain = (
        name.split(".", 1)[1] if name.startswith("structure/") and "." in name else name for name in names
    )
    firsts = {re.split("[./]", name, maxsplit=1)[0] for name in plain if not name.startswith(_OTHERS)}
    return sorted(firsts - {""})


def has_part(names: frozenset[str], part: str) -> bool:
    """Return whether an item is, or belongs to, the part; an empty name is that of the whole."""
    if not part:
        return True
    return any(name == part or name.startswith(f"{part}.") or _of_tree(name, part) for name in names)


def _of_tree(name: str, part: str) -> bool:
    return name.startswith("structure/") and name.partition(".")[2] == part

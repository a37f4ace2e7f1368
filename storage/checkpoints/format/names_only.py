"""Names and files in a checkpoint's ``.metadata``, without torch, in bounds, running nothing that a pickle has."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from holdfast import bounded_pickle
from holdfast.bounded_pickle import MaliciousPickleError, PickledKind
from holdfast.errors import CheckpointError

_OTHERS = ("rng/", "own/", "structure/")
"""Items of single ranks."""
_NONE = "it holds no checkpoint's metadata."


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
    items = _loaded(metadata, where)["state_dict_metadata"]
    return frozenset(name for name in items if isinstance(name, str))


def files_in(metadata: bytes, where: str, parts: Iterable[str] = ("",)) -> dict[str, int]:
    """Return the files with the bytes of these parts, by their paths in the checkpoint, and how long each is at least.

    Raises:
        CheckpointError: as for :func:`names_in`.
    """
    wanted, files = frozenset(parts), dict[str, int]()
    places = _loaded(metadata, where).get("storage_data")
    for item, place in places.items() if isinstance(places, dict) else ():
        match _facts(item) | _facts(place):
            case {"fqn": str(name), "relative_path": str(file), "offset": int(offset), "length": int(nbytes)}:
                if any(has_part(frozenset({name}), part) for part in wanted):
                    files[file] = max(files.get(file, 0), offset + nbytes)
    return files


def _facts(instance: Any) -> dict[Any, Any]:
    return instance.state if isinstance(instance, _Anything) and isinstance(instance.state, dict) else {}


def _loaded(metadata: bytes, where: str) -> dict[str, Any]:
    try:
        found = bounded_pickle.load(metadata, kinds=_kind, max_operations=None).state
        if isinstance(found["state_dict_metadata"], dict):
            return dict(found)
    except MaliciousPickleError as error:
        raise CheckpointError(f"{where}: its .metadata cannot be read: {error}.") from error
    except (AttributeError, KeyError, TypeError) as error:
        raise CheckpointError(f"{where}: its .metadata cannot be read: {_NONE}") from error
    raise CheckpointError(f"{where}: its .metadata cannot be read: {_NONE}")


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

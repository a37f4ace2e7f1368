"""The names of a checkpoint's ``.metadata``, without torch and without running what a pickle may contain."""

from __future__ import annotations

import io
import pickle
import re
from typing import Any

from holdfast.errors import CheckpointError

_OTHERS = ("rng/", "own/", "structure/")
"""Items of single ranks."""


class _Anything:
    """Stands for every object of the pickle; keeps its attributes and is never asked for more."""

    def __new__(cls, *args: Any, **kwargs: Any) -> _Anything:
        return super().__new__(cls)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def __setitem__(self, key: Any, value: Any) -> None:
        """Take an item of what may have been a dictionary."""

    def append(self, value: Any) -> None:
        """Take an item of what may have been a list."""

    def __call__(self, *args: Any) -> _Anything:
        return self

    def __hash__(self) -> int:
        return id(self)


class _NamesOnly(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        return _Anything

    def persistent_load(self, pid: Any) -> Any:
        return _Anything()


def names_in(metadata: bytes, where: str) -> frozenset[str]:
    """Return the full names of all items of a checkpoint, by the content of its ``.metadata``.

    Args:
        metadata: the content.
        where: names the checkpoint in errors.

    Raises:
        CheckpointError: it is no metadata of torch.distributed.checkpoint.
    """
    try:
        items = _NamesOnly(io.BytesIO(metadata)).load().state["state_dict_metadata"]
        return frozenset(name for name in items if isinstance(name, str))
    except Exception as error:  # a damaged pickle raises nearly anything
        raise CheckpointError(f"{where}: its .metadata cannot be read ({type(error).__name__}).") from error


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

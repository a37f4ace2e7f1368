"""Plain values by the names that stock torch gives them: for readers other than Holdfast."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from holdfast.storage.checkpoints.format.kinds import PLAIN
from holdfast.storage.checkpoints.format.places import Path, dotted, key_name
from holdfast.storage.checkpoints.format.plain_data import CONTAINERS, holds_dict


class StockNames:
    """Collects them, up to a number."""

    def __init__(self, taken: Mapping[str, Any], paths: dict[str, Path], most: int) -> None:
        """``taken``: names that tensors have; ``paths``: gets the places of the values; ``most``: so many values."""
        self.values: dict[str, Any] = {}
        self.many = False
        """Whether there were too many to give each a name of its own."""
        self._taken, self._paths, self._most = taken, paths, most

    def note(self, value: Any, path: Path) -> None:
        """Name one value."""
        if len(self.values) >= self._most:
            self.many = True
            return
        name = dotted(path)
        if name not in self.values and name not in self._taken:
            self.values[name] = value
            self._paths[name] = path

    def note_all(self, value: Any, path: Path) -> None:
        """Name what is inside of plain data, as long as there is room."""
        kind = type(value)
        if kind not in CONTAINERS or (kind is not dict and not holds_dict(value)):
            self.note(value, path)
            return
        for at, each in _parts(value):
            if self.many:
                return
            self.note_all(each, (*path, at))


def has_items(values: Any) -> bool:
    """Return whether stock torch looks for items inside a list."""
    return any(
        isinstance(each, Mapping | Tensor) or (isinstance(each, list | tuple) and has_items(each))
        for each in values
    ) or not all(type(each) in (*PLAIN, list, tuple) for each in values)


def _parts(value: Any) -> Any:
    """Return the keys under which stock torch looks inside plain data, and the values: not in tuples, nor under ''."""
    if type(value) is list:
        return enumerate(value)
    if type(value) is tuple:
        return ()
    if all(type(key) is str for key in value):
        return value.items()
    return ((name, each) for key, each in value.items() if (name := key_name(key)))

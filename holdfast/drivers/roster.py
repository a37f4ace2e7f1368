"""Names of the local machines: given once each, remembered even when a machine's folder is gone."""

from __future__ import annotations

import fcntl
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from holdfast import durable
from holdfast.models.base import Frozen

_NAME = re.compile(r"m(\d+)")


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock file ``path`` against all other processes; the kernel lets go when its holder dies."""
    durable.make_folder(path.parent)
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


class Roster(Frozen):
    """Which names were ever given (all below ``next_number``), and which are in use."""

    next_number: int = 0
    names: tuple[str, ...] = ()

    def ever_had(self, name: str) -> bool:
        """Return whether a machine of this name was ever made."""
        match = _NAME.fullmatch(name)
        return match is not None and int(match[1]) < self.next_number


class RosterFile:
    """The roster on disk; changes are made by one process at a time."""

    def __init__(self, home: Path) -> None:
        self._path = home.resolve() / "machines" / "roster.json"

    def read(self) -> Roster:
        """Return the roster as it stands."""
        try:
            return Roster.model_validate_json(self._path.read_bytes())
        except FileNotFoundError:
            return Roster()

    def add(self, n: int) -> list[str]:
        """Give ``n`` new names."""
        with locked(self._path.with_suffix(".lock")):
            now = self.read()
            first = max([now.next_number, *(number + 1 for number in self._folders())])
            names = [f"m{number}" for number in range(first, first + n)]
            self._write(Roster(next_number=first + n, names=(*now.names, *names)))
        return names

    def remove(self, name: str) -> None:
        """Take a name out of use; it is not given again."""
        with locked(self._path.with_suffix(".lock")):
            now = self.read()
            kept = tuple(other for other in now.names if other != name)
            self._write(Roster(next_number=now.next_number, names=kept))

    def _folders(self) -> list[int]:
        matches = (_NAME.fullmatch(path.name) for path in self._path.parent.iterdir())
        return [int(match[1]) for match in matches if match]

    def _write(self, roster: Roster) -> None:
        durable.write(self._path, json.dumps(roster.model_dump()), "roster")

"""Files of training data as they were listed, and the splits that they are read in."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple


class Split(NamedTuple):
    """A part of a file that is read at once: a row group, a record batch, a range of lines."""

    rows: int
    start: int
    """Where it begins: a byte, or a number that its format defines."""
    nbytes: int


@dataclass(frozen=True, slots=True)
class File:
    """A file as it was listed. Another size or version later means that it was changed."""

    path: str
    """Within its place."""
    nbytes: int
    version: str
    """Changes with the content: an ETag, a time of modification."""
    partition: datetime | None = None
    """The hour (or the day, at hour 0) that its path names."""


def counts(path: str) -> bool:
    """Return whether a path is that of data: no part of it begins with ``.`` or ``_``.

    Keys of an object store may have empty parts, as in ``a//b.jsonl``.
    """
    return not any(part.startswith((".", "_")) for part in path.split("/"))


@dataclass(frozen=True, slots=True)
class Indexed:
    """A file with its splits."""

    file: File
    splits: tuple[Split, ...]

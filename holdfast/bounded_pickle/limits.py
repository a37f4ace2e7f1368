"""The classes that a pickle may name, and how much it may ask for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from holdfast.errors import CheckpointError

MAX_INTEGER_BITS = 128
MAX_DEPTH = 64


class MaliciousPickleError(CheckpointError):
    """A file that claims to be plain data asks for more than that."""


@dataclass(frozen=True)
class PickledKind:
    """A class, or a function, that a pickle may name, and the ways in which it may use it.

    Each raises ValueError or TypeError for what it does not take, and makes no more than it is given.
    """

    name: str
    call: Callable[..., Any] | None = None
    """Called with plain arguments (REDUCE)."""
    blank: Callable[[], Any] | None = None
    """Makes an instance without attributes (NEWOBJ)."""
    blank_of: bool = False
    """The instance may be made of arguments."""
    build: Callable[[Any, Any], None] | None = None
    """Gives the instance its state (BUILD)."""
    is_key: bool = False
    """Its instances may be keys of dictionaries: their hash is of bounded cost once they have their state."""
    of_keys: bool = False
    """Its one argument is a list whose elements it hashes, as a set does."""
    may_refer_back: bool = False
    """An instance may be part of its own state."""

    def __hash__(self) -> int:
        """Return that of its name."""
        return hash(self.name)


@dataclass(frozen=True)
class Limits:
    """How much a pickle may ask for."""

    depth: int = MAX_DEPTH
    """Levels of containers in containers."""
    integer_bits: int | None = MAX_INTEGER_BITS
    """Length of an integer; None: the file's size is enough, since it is as long as its bytes."""
    any_key: bool = False
    """Keys may be anything that has a hash, such as tuples, if all hashes take time in proportion to the file."""


PLAIN_DATA = Limits()
Kinds = Callable[[str, str], Any]
"""Returns the :class:`PickledKind` or the plain value of a module's name; raises :class:`MaliciousPickleError`."""

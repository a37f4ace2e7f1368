"""How one kind of value is written as plain data, and made again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

Down = Callable[[Any, str], Any]
"""Encodes a value inside another one; the text names its place, and is empty for what has none (keys)."""
Up = Callable[[Any], Any]


class ValueKind(NamedTuple):
    """One kind of value."""

    tag: str
    down: Callable[[Any, Down], Any]
    """The value as plain data, given how to encode what is inside."""
    up: Callable[[Any, Up], Any]
    """The value again."""

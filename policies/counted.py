"""Numbers of things in sentences."""

from __future__ import annotations


def counted(number: int, one: str, many: str) -> str:
    """Return the number with the words for so many: ``1 machine is dead``, ``2 machines are dead``."""
    return f"{number} {one if number == 1 else many}"

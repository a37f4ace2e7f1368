"""Rules that a script may set for one part of its state."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Part:
    """One part of the state dictionary with rules of its own: ``{"loader": holdfast.Part(loader, strict=False)}``.

    State that differs from rank to rank is saved for each rank and comes back to the same rank. At another number of
    ranks there is no same rank: ``merge`` and ``split`` then define which rank gets what; without them the restore is
    refused.
    """

    value: Any
    """The module, optimizer or other object; None: a part of older checkpoints that the script no longer has."""
    strict: bool = True
    """False: names that only the checkpoint or only the script has are no error; the others are loaded."""
    merge: Callable[[Sequence[Any]], Any] | None = None
    """Makes one state from those of all ranks that saved it, by rank."""
    split: Callable[[Any, int, int], Any] | None = None
    """Given the result of ``merge``, a rank, and the number of ranks: the state for that rank's ``load_state_dict``."""


def unwrapped(value: Any) -> Part:
    """Return ``value`` as a part."""
    return value if isinstance(value, Part) else Part(value)

"""Rules that a script may set for one part of its state."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.errors import ScriptRefusedError


@dataclass(frozen=True)
class Part:
    """One part of the state dictionary with rules of its own: ``{"loader": holdfast.Part(loader, strict=False)}``.

    State that differs from rank to rank is saved for each rank and comes back to the same rank. At another number of
    ranks there is no same rank: ``merge`` and ``split`` then define which rank gets what, also where all ranks saved
    equal values; without them values that differ are refused.
    """

    value: Any
    """The module, optimizer or other object; None: a part of older checkpoints that the script no longer has."""
    strict: bool = True
    """False: names that only the checkpoint or only the script has are no error; the others are loaded."""
    merge: Callable[[Sequence[Any]], Any] | None = None
    """Makes one state from those of all ranks that saved it, by rank."""
    split: Callable[[Any, int, int], Any] | None = None
    """Given the result of ``merge``, a rank, and the number of ranks: the state for that rank's ``load_state_dict``."""

    def __post_init__(self) -> None:
        """Refuse one of ``merge`` and ``split`` without the other, which would show at the first resize only.

        Raises:
            ScriptRefusedError: there is one of them, or one is no function.
        """
        for name, given in (("merge", self.merge), ("split", self.split)):
            if given is not None and not callable(given):
                raise ScriptRefusedError(f"holdfast.Part({name}={given!r}): expected a function")
        if (self.merge is None) != (self.split is None):
            raise ScriptRefusedError(
                f"holdfast.Part({'merge' if self.merge else 'split'}=...): expected merge and split together"
            )


def parts_of(state: Mapping[str, Any]) -> dict[str, Part]:
    """Return the parts of the ``state`` that a script gives, by name.

    Raises:
        ScriptRefusedError: it is no dictionary, or a name in it is no text.
    """
    expected = "expected a dictionary of names, such as {'model': model, 'optimizer': optimizer}"
    if not isinstance(state, Mapping):
        raise ScriptRefusedError(f"the state is of type {type(state).__name__}: {expected}.")
    for name in state:
        if not isinstance(name, str):
            raise ScriptRefusedError(
                f"state[{name!r}]: the name is of type {type(name).__name__}: {expected}."
            )
    return {name: each if isinstance(each, Part) else Part(each) for name, each in state.items()}

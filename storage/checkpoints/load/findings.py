"""Findings of a proof so far."""

from __future__ import annotations

import re
from collections.abc import Collection

from holdfast.models.rehearsal import Problem, Proof

_PRIVATE = re.compile(r"^(?:structure|own)/\d+\.")
_REFUSED = re.compile(r"Unsupported global: GLOBAL ([\w.<>]+)")


class Findings:
    """Errors, and parts that could not be tested, by path in the state."""

    def __init__(self, allowed: Collection[str] | None) -> None:
        """Start empty; ``allowed``: names of the classes that the script allows in checkpoints; None: not known."""
        self.problems: list[Problem] = []
        self.untested: list[Problem] = []
        self._allowed = allowed

    def wrong(self, path: str, what: object) -> None:
        """Note a problem."""
        self.problems.append(Problem(path=in_state(path), wrong=first_line(what)))

    def left_out(self, path: str, why: object) -> None:
        """Note what could not be tested."""
        self.untested.append(Problem(path=in_state(path), wrong=first_line(why)))

    def of_object(self, path: str, error: Exception) -> None:
        """Note that an object is not loaded: a problem, unless the script that is not here may load it."""
        refused = _REFUSED.search(f"{error.__cause__ or ''} {error}")
        if refused and (self._allowed is None or refused[1] in self._allowed):
            self.left_out(path, f"it holds a {refused[1]}, which only the training script can load")
        else:
            # The path is reported once.
            self.wrong(path, first_line(error).removeprefix(f"{path}: "))

    def proof(self, *, items: int = 0, nbytes: int = 0, seconds: float) -> Proof:
        """Return all findings as a proof."""
        return Proof.of(self.problems, self.untested, items=items, nbytes=nbytes, seconds=seconds)


def in_state(name: str) -> str:
    """Return where in the state an item comes from: without what makes its name one rank's own."""
    return _PRIVATE.sub("", name)


def first_line(what: object) -> str:
    """Return the beginning of an error's message, or its name."""
    text = str(what).strip().partition("\n")[0]
    return text or type(what).__name__

"""What a proof found so far."""

from __future__ import annotations

import re
from collections.abc import Collection

from holdfast.models.rehearsal import Problem, Proof

_REFUSED = re.compile(r"Unsupported global: GLOBAL ([\w.<>]+)")


class Findings:
    """What is wrong, and what could not be tested, by path in the state."""

    def __init__(self, allowed: Collection[str] | None) -> None:
        """``allowed``: names of the classes that the script allows in checkpoints; None: not known."""
        self.problems: list[Problem] = []
        self.untested: list[Problem] = []
        self._allowed = allowed

    def wrong(self, path: str, what: object) -> None:
        """Note a problem."""
        self.problems.append(Problem(path=path, wrong=first_line(what)))

    def of_object(self, path: str, error: Exception) -> None:
        """Note that an object is not loaded: a problem, unless the script that is not here may load it."""
        refused = _REFUSED.search(f"{error.__cause__ or ''} {error}")
        if refused and (self._allowed is None or refused[1] in self._allowed):
            known = f"it holds a {refused[1]}, which only the training script can load"
            self.untested.append(Problem(path=path, wrong=known))
        else:
            # The path is told once.
            self.wrong(path, first_line(error).removeprefix(f"{path}: "))

    def proof(self, *, items: int = 0, nbytes: int = 0, seconds: float) -> Proof:
        """All of it."""
        return Proof.of(self.problems, self.untested, items=items, nbytes=nbytes, seconds=seconds)


def first_line(what: object) -> str:
    """The beginning of an error's message, or its name."""
    text = str(what).strip().partition("\n")[0]
    return text or type(what).__name__

"""Lines of a file that a new code version changed, and whether a failure came from one of them."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence

from holdfast.models.base import Frozen

MOST_LINES = 20_000
"""Longer files are generated; comparing them takes too long for a recovery."""
_FRAME = re.compile(r"(?P<file>.+):(?P<line>\d+) in ")


class CodePlace(Frozen):
    """Innermost frame of a traceback in the job's own code."""

    file: str
    """Relative to the code's directory."""
    line: int


def place(frame: str) -> CodePlace | None:
    """Parse ``file:line in function``; None: it has no such form."""
    found = _FRAME.match(frame)
    return CodePlace(file=found["file"], line=int(found["line"])) if found else None


def changed_lines(before: str | None, now: str) -> tuple[tuple[int, int], ...]:
    """Return first and last line of each stretch of ``now`` that ``before`` lacks; for deleted lines, their neighbours.

    Args:
        before: the file as it was; None: it is new, all of it is changed.
        now: the file as it is.

    Raises:
        ValueError: it is too long to compare.
    """
    new = now.splitlines()
    if before is None:
        return ((1, len(new)),) if new else ()
    old = before.splitlines()
    if max(len(old), len(new)) > MOST_LINES:
        raise ValueError(f"it has more than {MOST_LINES} lines")
    codes = difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
    return tuple(
        (first + 1, last) if last > first else (max(1, first), first + 1)
        for tag, _, _, first, last in codes
        if tag != "equal"
    )


def evidence(frame: str, changed: Sequence[tuple[int, int]], before: str, now: str) -> str:
    """Return the evidence against the code when the failure came from a changed line; empty: it did not."""
    found = place(frame)
    if found is None or not any(first <= found.line <= last for first, last in changed):
        return ""
    return f"it was raised at {frame}, a line that version {now} changed against {before}"

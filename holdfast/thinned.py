"""Log lines that repeat: one now and then, with how often it came, so that what fails for days fills no disk."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass

EVERY_S = 60.0
MOST = 1000
"""Different lines that are remembered."""


@dataclass
class _Line:
    """A line that came lately."""

    until: float
    left_out: int = 0


class Thinned(logging.Filter):
    """Passes the first of equal warnings and errors, and then one in ``every_s`` seconds. Any thread may log."""

    def __init__(self, every_s: float = EVERY_S, now: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._every_s, self._now = every_s, now
        self._lines: dict[Hashable, _Line] = {}
        self._lock = threading.Lock()

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether the line is written; one that stands for others has their number."""
        if record.levelno < logging.WARNING:
            return True
        try:
            text = record.getMessage()
            error = repr(record.exc_info[1]) if record.exc_info else ""
        except Exception:  # logging itself reports a line that cannot be made
            return True
        with self._lock:
            left_out = self._left_out((record.name, record.levelno, text, error))
        if left_out:
            record.msg, record.args = f"{text} ({left_out} more since the last such line)", ()
        return left_out is not None

    def _left_out(self, key: Hashable) -> int | None:
        """Return how many equal lines were left out since the last one; None: this one is left out, too."""
        now = self._now()
        line = self._lines.get(key)
        if line is not None and now < line.until:
            line.left_out += 1
            return None
        if line is None and len(self._lines) >= MOST:
            self._lines = {known: each for known, each in self._lines.items() if now < each.until}
            if len(self._lines) >= MOST:
                self._lines.clear()
        self._lines[key] = _Line(now + self._every_s)
        return line.left_out if line is not None else 0

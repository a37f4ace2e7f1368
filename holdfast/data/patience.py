"""Patience with a place that does not answer for a time: it is asked again, and a rank does not end for that."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from holdfast.errors import UnavailableError

T = TypeVar("T")
_log = logging.getLogger(__name__)

PATIENCE_S = 600.0
"""A store is seldom away for longer; collectives of ranks that wait for one that reads end after 1,800 s."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.2, 15.0
_LOOK_S = 0.5
"""Between looks whether the process ends: its exit waits for the threads that read."""


class PlacePatience:
    """Asks again, with growing pauses, until a place answers or ``seconds`` are over. Any thread may use it."""

    def __init__(self, seconds: float, now: Callable[[], float] = time.monotonic) -> None:
        """``seconds``: from the first answer that did not come; 0: ask once."""
        self.seconds = seconds
        self._now = now
        self._lock = threading.Lock()
        self._waiting = 0
        self._ended = threading.Event()

    @property
    def away(self) -> bool:
        """Whether anyone waits for a place."""
        return self._waiting > 0

    def end(self) -> None:
        """Wait no more: whatever does not answer fails at once."""
        self._ended.set()

    def ask(self, question: Callable[[], T]) -> T:
        """Return what ``question`` returns.

        Raises:
            UnavailableError: the place did not answer for so long.
        """
        try:
            return question()
        except UnavailableError as error:
            if not self.seconds:
                raise
            first = error
        _log.warning("%s. It is asked again for %g s (patience_s)", first, self.seconds)
        with self._lock:
            self._waiting += 1
        try:
            return self._again(question, first)
        finally:
            with self._lock:
                self._waiting -= 1

    def _again(self, question: Callable[[], T], last: UnavailableError) -> T:
        since, pause_s = self._now(), FIRST_PAUSE_S
        while (left := since + self.seconds - self._now()) > 0:
            if not self._paused(min(pause_s, left)):
                raise last
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
            try:
                answer = question()
            except UnavailableError as error:
                last = error
                continue
            _log.warning("it answers again after %.0f s", self._now() - since)
            return answer
        raise UnavailableError(
            f"{last}. It was asked for {self._now() - since:.0f} s (patience_s = {self.seconds:g}): look at the place, "
            "and go on from the last checkpoint, or give the data set a longer patience_s"
        ) from None

    def _paused(self, seconds: float) -> bool:
        """Wait; return False, early, when there is nothing to wait for any more."""
        until = self._now() + seconds
        while (left := until - self._now()) > 0:
            if self._ended.wait(min(left, _LOOK_S)) or _process_ends():
                return False
        return not self._ended.is_set()


def _process_ends() -> bool:
    """Return whether the interpreter joins its threads: a pool's before the main thread counts as dead."""
    return bool(getattr(threading, "_SHUTTING_DOWN", False)) or not threading.main_thread().is_alive()

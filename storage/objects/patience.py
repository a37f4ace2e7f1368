"""How often one request is tried again, and after which pauses."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from tenacity import RetryCallState

from holdfast.storage.objects.deadline import Deadline
from holdfast.storage.objects.failures import asks_to_slow_down

FIRST_S, LONGEST_S = 0.1, 8.0
"""Pauses between two tries: about the first, at most the longest."""
SLOW_S = 60.0
"""How long a request that the store has no room for is tried again, where there is no deadline."""


class Patience:
    """Of one call: its failures on one spot are counted; when it gets on, the count begins again.

    While the store asks to slow down, as when all ranks read or upload at once, nothing is counted: until ``deadline``,
    or for :data:`SLOW_S` on one spot.
    """

    def __init__(
        self, attempts: int, reached: Callable[[], int] = lambda: 0, deadline: Deadline | None = None
    ) -> None:
        self._attempts, self._reached, self._deadline = attempts, reached, deadline
        self._spot, self._since = reached(), time.monotonic()
        self._seen = self._tries = self._failed = 0

    def is_over(self, state: RetryCallState) -> bool:
        """Return whether the call is given up: what tenacity asks with each failure."""
        self._note(state)
        if not _slows(state):
            return self._failed >= self._attempts
        return self._deadline.is_over() if self._deadline else time.monotonic() - self._since > SLOW_S

    def pause_s(self, state: RetryCallState) -> float:
        """Return the seconds until the next try, spread so that clients do not come back at once."""
        self._note(state)
        return random.uniform(0.0, min(LONGEST_S, FIRST_S * 2**self._tries))

    def _note(self, state: RetryCallState) -> None:
        if state.attempt_number == self._seen:
            return
        self._seen = state.attempt_number
        if (reached := self._reached()) != self._spot:
            self._spot, self._since, self._tries, self._failed = reached, time.monotonic(), 0, 0
        self._tries += 1
        self._failed += not _slows(state)


def _slows(state: RetryCallState) -> bool:
    return asks_to_slow_down(state.outcome.exception() if state.outcome else None)

"""Calls between two saves, where a job limits what saves may cost: measured beside training, as step times."""

from __future__ import annotations

import math
import statistics
from collections import deque

KNOWN_STEPS = 8
"""Steps without a save beside them that say how long a step takes."""
LOOKING_CALLS = 4
"""Calls between two saves until that is known, so that most steps have no save beside them."""
STALE_STEPS = 500
"""It is measured again after so many steps that all had a save beside them."""
LONGEST_S = 600.0
"""Longest time between two saves, in seconds, whatever they cost."""
_SHORTEST_S = 1e-6
"""No step is shorter, in seconds."""
_RECENT_STEPS, _RECENT_SAVES, _RECENT_CALLS = 32, 8, 5


class SaveInterval:
    """Calls of ``checkpoint`` from one save to the next at which saves take at most a share of training time.

    The cost of a save is the time by which the steps beside it are longer than others: what ``checkpoint`` takes, the
    waits for the copy, and what its threads and the peers' copies take from the processors that compute the step. The
    method is the adaptive rate tuning of CheckFreq (Mohan, Phanishayee and Chidambaram, FAST '21, section 4.3). Medians
    of recent steps and saves count, so that no single evaluation or pause decides.

    Args:
        max_overhead: the share, greater than 0 and less than 1; None: every call.
    """

    def __init__(self, max_overhead: float | None) -> None:
        self._share = max_overhead
        self._plain = deque[float](maxlen=_RECENT_STEPS)
        self._costs = deque[float](maxlen=_RECENT_SAVES)
        self._beside: list[float] | None = None
        """Of the last save, where it counts: seconds of each step beside it so far."""
        self._since_plain = self._since_call = 0
        self._between = deque[int]([1], maxlen=_RECENT_CALLS)
        """Steps from one call to the next, of the last ones."""

    def called(self) -> None:
        """Record a call at which a save may be due."""
        if self._share is None:
            return
        self._between.append(max(1, self._since_call))
        self._since_call = 0

    def saves(self, *, planned: bool) -> None:
        """Record that a save begins; the cost of one that comes with a new plan is not that of others."""
        if self._share is None:
            return
        if self._beside and self._plain:
            self._costs.append(sum(self._beside) - len(self._beside) * statistics.median(self._plain))
        self._beside = None if planned else []

    def step(self, seconds: float, *, beside: bool) -> None:
        """Record what a step took; ``beside``: a save was under way in it."""
        if self._share is None:
            return
        self._since_call += 1
        if not beside:
            self._plain.append(seconds)
            self._since_plain = 0
            return
        self._since_plain += 1
        if self._beside is not None:
            self._beside.append(seconds)

    @property
    def calls(self) -> int:
        """Calls from one save to the next, at least 1; the ranks of a job take the largest that any of them has."""
        if self._share is None:
            return 1
        plain, costs = [*self._plain], [*self._costs]  # another thread may add to them
        if len(plain) < KNOWN_STEPS or self._since_plain > STALE_STEPS:
            return LOOKING_CALLS
        if not costs:
            return 1
        steps = min(statistics.median(costs) / self._share, LONGEST_S) / max(
            statistics.median(plain), _SHORTEST_S
        )
        return max(1, math.ceil(steps / statistics.median_low([*self._between])))

"""Looking for what another process does: how often, and until when."""

from __future__ import annotations

import time
from collections.abc import Callable

_SHARE = 0.1
"""Of the time that it takes, by which it may be noticed late."""
_SHORTEST_S = 0.0002


def pause_s(waited_s: float, expected_s: float, longest_s: float) -> float:
    """Return seconds until the next look, when one has waited for ``waited_s`` and expects ``expected_s`` in all.

    Each look takes the processor and the interpreter from the step; each one that comes late delays the next save.
    """
    return min(max(_SHARE * max(waited_s, expected_s), _SHORTEST_S), longest_s)


def until(
    done: Callable[[], bool], ended: Callable[[float], bool], expected_s: float, longest_s: float
) -> float:
    """Look repeatedly until ``done``, or until this process ends; return seconds waited.

    Args:
        done: looks.
        ended: waits so many seconds; returns at once, with True, when this process ends.
        expected_s: what it took the last time.
        longest_s: longest time between two looks.
    """
    began = time.monotonic()
    while not done():
        if ended(pause_s(time.monotonic() - began, expected_s, longest_s)):
            break
    return time.monotonic() - began

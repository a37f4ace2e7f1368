"""Growth of counters between two looks."""

from __future__ import annotations

from collections.abc import Hashable


class Rates:
    """Remembers the last value of each counter, and when it was read."""

    def __init__(self) -> None:
        self._last: dict[Hashable, tuple[float, float]] = {}

    def growth(self, counter: Hashable, value: float, now: float) -> tuple[float, float]:
        """Return growth since the last reading and seconds between; (0, 0) at the first reading or after a reset."""
        before = self._last.get(counter)
        self._last[counter] = (value, now)
        if before is None or value < before[0] or now <= before[1]:
            return 0.0, 0.0
        return value - before[0], now - before[1]

    def per_s(self, counter: Hashable, value: float, now: float) -> float:
        """Return growth per second; 0.0 at the first reading."""
        grown, seconds = self.growth(counter, value, now)
        return grown / seconds if seconds else 0.0

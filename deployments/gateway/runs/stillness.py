"""Time for which the signs of a run have not changed, measured by a monotonic clock."""

from __future__ import annotations

from collections.abc import Collection, Hashable

AHEAD_S = 600.0
"""A sign may lie so far ahead: a run that is to start later. Further ahead, the clock was set back since."""


class RunStillness:
    """Times in the ledger and at Prefect are of wall clocks, which may step by hours: only a change of them counts."""

    def __init__(self) -> None:
        self._signs: dict[str, tuple[Hashable, float]] = {}
        """The signs of each incident's run, and since when they are unchanged."""

    def since(self, incident: str, signs: Hashable, age_s: float, now: float) -> float:
        """Return how long the signs have been unchanged.

        Args:
            incident: whose run it is.
            signs: all that a living run changes.
            age_s: of the newest sign by the wall clocks: counts when they are seen for the first time.
            now: monotonic.
        """
        known, began = self._signs.get(incident, (None, 0.0))
        if known != signs:
            began = now - (age_s if age_s > -AHEAD_S else 0.0)
            self._signs[incident] = signs, began
        return now - began

    def keep(self, incidents: Collection[str]) -> None:
        """Forget all others."""
        self._signs = {name: known for name, known in self._signs.items() if name in incidents}

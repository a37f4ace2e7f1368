"""Time of tenacity's retries, turned by hand: it passes only while they wait."""

from __future__ import annotations

import pytest


class HandClock:
    """As the module ``time``, as far as tenacity takes it."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def by_hand(monkeypatch: pytest.MonkeyPatch) -> HandClock:
    """Have retries wait by a clock of this kind until the test is over."""
    clock = HandClock()
    monkeypatch.setattr("tenacity.time", clock)
    monkeypatch.setattr("tenacity.nap.time", clock)
    return clock

"""Reports of a rank to its agent: short datagrams, never waited for."""

from __future__ import annotations

import math
from typing import Any

from holdfast.agent.wire import Sender


class RankReporter:
    """Sends this rank's messages; each carries its rank and epoch."""

    def __init__(self, sender: Sender, rank: int, epoch: int) -> None:
        self._sender = sender
        self._rank = rank
        self._epoch = epoch

    def send(self, kind: str, **fields: Any) -> bool:
        """Send one message of ``kind``; False when the agent did not take it."""
        return self._sender.send({"t": kind, "rank": self._rank, "epoch": self._epoch, **fields})


def encode(value: float | None) -> float | str | None:
    """Return a number as messages carry it: JSON has no NaN and no infinity."""
    if value is None or math.isfinite(value):
        return value
    if math.isnan(value):
        return "nan"
    return "inf" if value > 0 else "-inf"

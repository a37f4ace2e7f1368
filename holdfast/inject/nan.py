"""One product of one rank is wrong once, as from a bit that flipped: it does not happen again in a replay."""

from __future__ import annotations

import time

from holdfast.damage.hook import NAN
from holdfast.inject.target import Target


def strike(target: Target, rank: int | None) -> int:
    """Have the rank's process damage its next product."""
    chosen, _ = target.rank(rank)
    target.plant(NAN, {"fault": "nan", "rank": chosen, "at": time.time()})
    return chosen

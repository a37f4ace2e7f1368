"""One bit of one weight flips after the optimizer's step: finite, and seen by no check of the machine."""

from __future__ import annotations

import time

from holdfast.damage.hook import FLIP_BIT
from holdfast.inject.target import Target


def strike(target: Target, rank: int | None) -> int:
    """Have ``rank`` flip one bit of its first weight, once, after its next optimizer step."""
    chosen, _ = target.rank(rank)
    target.plant(FLIP_BIT, {"fault": "flip-bit", "rank": chosen, "at": time.time()})
    return chosen

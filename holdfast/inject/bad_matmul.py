"""A machine computes wrong matrix products, the same way every time, in every process, until it is repaired."""

from __future__ import annotations

import time

from holdfast.damage.hook import BAD_MATMUL
from holdfast.inject.target import Target


def strike(target: Target, rank: int | None) -> None:
    """Have all processes of the machine damage their products, present and future ones."""
    target.plant(BAD_MATMUL, {"fault": "bad-matmul", "at": time.time()})

"""Finite products of a training job that are wrong by a few bits, on a machine on which every check computes right."""

from __future__ import annotations

import time

from holdfast.damage.hook import WRONG_BITS
from holdfast.inject.target import Target


def strike(target: Target, rank: int | None) -> None:
    """Have all ranks on the machine, present and future ones, err in the last bits of one element of each product."""
    target.plant(WRONG_BITS, {"fault": "wrong-bits", "at": time.time()})

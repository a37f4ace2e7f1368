"""Samples dealt to lanes, and lanes to ranks. Pure.

The order of all samples is dealt like cards to a fixed number of *lanes*: sample ``g`` is in lane ``g % lanes``. A rank
takes whole lanes where it can, and so reads few files, at any number of ranks. Who reads what changes with that number;
which samples make up a step does not.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Pick:
    """Consecutive samples of one lane, by their places in the lane."""

    lane: int
    first: int
    last: int
    """The place after the last one."""

    def __len__(self) -> int:
        return self.last - self.first


def dealt(count: int, lane: int, lanes: int) -> int:
    """Return how many of the first ``count`` samples are in ``lane``."""
    return max(0, -(-(count - lane) // lanes))


def share(batch: int, rank: int, ranks: int) -> tuple[int, int]:
    """Return the part of a batch that is ``rank``'s: as many samples as the others', or one more."""
    return batch * rank // ranks, batch * (rank + 1) // ranks


def picks(first: int, batch: int, low: int, high: int, lanes: int) -> Iterator[Pick]:
    """Yield what lies from ``low`` to ``high`` of the batch of ``batch`` samples from sample ``first`` on.

    The batch is put in order of its lanes for that, so that a share has few of them.
    """
    at = 0
    for lane in range(lanes):
        start, stop = dealt(first, lane, lanes), dealt(first + batch, lane, lanes)
        begin, end = max(start, start + low - at), min(stop, start + high - at)
        if begin < end:
            yield Pick(lane, begin, end)
        at += stop - start

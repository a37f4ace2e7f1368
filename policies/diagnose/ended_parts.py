"""Ranks that wait for a part of themselves, a thread or a child process, which ended by an exception."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from holdfast.models.agent import EndedPart, StackDump
from holdfast.policies.join_names import join_names

_MOST = 3
"""Ranks of which it is reported in words: what one thread raised, all may have."""


def by_rank(stacks: Sequence[StackDump]) -> dict[int, EndedPart]:
    """Return the part that ended of each rank that has one."""
    return {
        each.rank: each.ended for each in stacks if each.ended and each.rank is not None and not each.child
    }


def in_words(ended: dict[int, EndedPart]) -> tuple[str, ...]:
    """Return a line for each of the first few ranks, and one for the others."""
    lines = [_described(rank, ended[rank]) for rank in sorted(ended)[:_MOST]]
    return (*lines, *([f"so did parts of {len(ended) - _MOST} more ranks"] if len(ended) > _MOST else []))


def excuse(outliers: Collection[int], ended: dict[int, EndedPart]) -> str:
    """Return why the outliers stand out by the job's own doing; empty: one of them has no such reason.

    An exception that a bad device, disk or network may have raised is no excuse.
    """
    if not outliers or not all(rank in ended and ended[rank].own for rank in outliers):
        return ""
    first = min(outliers)
    more = f", and so do ranks {join_names(sorted(outliers)[1:])}" if len(outliers) > 1 else ""
    return f"{_described(first, ended[first])}{more}: the job's own doing, no machine is at fault"


def _described(rank: int, ended: EndedPart) -> str:
    if not ended.part:
        return f"rank {rank} could not start a thread ({ended.error})"
    at = f" ({ended.place})" if ended.place else ""
    return f"{ended.part} of rank {rank} ended by {ended.error}{at}, and the rank waits on"

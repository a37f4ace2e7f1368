"""Account of a job's time: productive, or lost to one phase and one cause; overlaps counted once.

Spans may overlap in any way. At each instant the span of the highest priority counts, and what no span covers
counts as restarting without an incident. Times are whole microseconds from here on, so that the parts add up
to the wall-clock time exactly, not nearly.
"""

from __future__ import annotations

import heapq
import itertools
from collections import defaultdict
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import NamedTuple

from holdfast.models.base import Frozen

US = 1_000_000


class LostPhase(StrEnum):
    """Phases in which a job makes no new steps."""

    UNDETECTED = "undetected"
    PAUSING = "pausing"
    DIAGNOSING = "diagnosing"
    DECIDING = "deciding"
    SWAPPING = "swapping"
    RESTORING = "restoring"
    RESTARTING = "restarting"
    RECOMPUTING = "recomputing"
    CHECKPOINTING = "checkpoint_stalls"
    WAITING = "waiting"
    """Waiting for people or for machines."""
    SMALLER = "smaller_size"
    """New steps were made, on fewer machines than wanted: the share that was missing."""
    ZERO = "scaled_to_zero"
    """A person or a schedule wants no steps: no time is lost, and none is made."""


class Span(NamedTuple):
    """A stretch of time with one label. Times in seconds, of one clock."""

    begin: float
    end: float
    phase: LostPhase | None
    """None: new steps were made."""
    cause: str = ""
    """Incident class; empty: no incident. Of a productive span: why it ran on fewer machines."""
    priority: tuple[float, ...] = (0.0,)
    """Where spans overlap, the greatest counts; compared only with tuples of the same length or another begin."""
    stall_s: float = 0.0
    """Of a productive span: how much of it training stood still for checkpoints, spread evenly."""
    share: float = 1.0
    """Of a productive span: the share of the wanted machines that it ran on."""


class LostTime(Frozen):
    """Time lost to one phase of one cause."""

    phase: LostPhase
    cause: str = ""
    """Incident class; empty: no incident."""
    us: int
    """Microseconds."""

    @property
    def seconds(self) -> float:
        """Convert the time to seconds."""
        return self.us / US


class Account(Frozen):
    """The wall-clock time in full: ``productive_us``, ``zero_us`` and all of ``lost`` add up to ``wall_us``."""

    wall_us: int
    productive_us: int
    lost: tuple[LostTime, ...] = ()
    worst_us: int = 0
    """Longest stretch without a new step while any was wanted."""
    zero_us: int = 0
    """Scaled to zero by wish: neither productive nor lost."""

    @property
    def ratio(self) -> float:
        """Productive share of the time in which steps were wanted; 0 for no time at all, 1 where none was wanted."""
        wanted = self.wall_us - self.zero_us
        return self.productive_us / wanted if wanted else float(self.wall_us > 0)

    def by_phase(self) -> dict[str, float]:
        """Return seconds by phase, in the order of :class:`LostPhase`; phases without any are left out."""
        return _sums({phase: [row for row in self.lost if row.phase is phase] for phase in LostPhase})

    def by_class(self) -> dict[str, float]:
        """Return seconds by incident class, most first; ``""`` is the time that no incident caused."""
        causes = {row.cause for row in self.lost}
        sums = _sums({cause: [row for row in self.lost if row.cause == cause] for cause in causes})
        return dict(sorted(sums.items(), key=lambda item: (-item[1], item[0])))


def account(spans: Iterable[Span], begin: float, end: float) -> Account:
    """Label every instant from ``begin`` to ``end`` (seconds; an ``end`` before ``begin`` is no time)."""
    low = _us(begin)
    high = max(low, _us(end))
    spent: dict[tuple[LostPhase | None, str], int] = defaultdict(int)
    stalled = worst = gap = zero = 0
    for label, length in _labelled(spans, low, high):
        if label is not None and label.phase is None:
            stall = _stall(label, length)
            stalled += stall
            made = round((length - stall) * label.share)
            spent[None, ""] += made
            spent[LostPhase.SMALLER, label.cause] += length - stall - made
            gap = 0
            continue
        if label is not None and label.phase is LostPhase.ZERO:
            zero += length
            gap = 0
            continue
        gap += length
        worst = max(worst, gap)
        spent[(label.phase, label.cause) if label else (LostPhase.RESTARTING, "")] += length
    if stalled:
        spent[LostPhase.CHECKPOINTING, ""] += stalled
    productive = spent.pop((None, ""), 0)
    order = list(LostPhase)
    lost = [LostTime(phase=phase, cause=cause, us=us) for (phase, cause), us in spent.items() if phase and us]
    return Account(
        wall_us=high - low,
        productive_us=productive,
        lost=tuple(sorted(lost, key=lambda row: (order.index(row.phase), row.cause))),
        worst_us=worst,
        zero_us=zero,
    )


def _labelled(spans: Iterable[Span], low: int, high: int) -> Iterable[tuple[Span | None, int]]:
    """Return elementary intervals in order: the span that counts (None: none does), and the length."""
    cut = [
        (max(low, _us(span.begin)), min(high, _us(span.end)), index, span) for index, span in enumerate(spans)
    ]
    waiting = sorted(((b, e, i, s) for b, e, i, s in cut if e > b), key=lambda item: (item[0], item[2]))
    edges = sorted({low, high, *(item[0] for item in waiting), *(item[1] for item in waiting)})
    active: list[tuple[tuple[float, ...], int, int, Span]] = []
    at = 0
    for here, there in itertools.pairwise(edges):
        while at < len(waiting) and waiting[at][0] <= here:
            _, ends, index, span = waiting[at]
            heapq.heappush(active, (tuple(-part for part in span.priority), index, ends, span))
            at += 1
        while active and active[0][2] <= here:
            heapq.heappop(active)
        yield (active[0][3] if active else None), there - here


def _stall(span: Span, length: int) -> int:
    whole = _us(span.end) - _us(span.begin)
    return min(length, length * max(0, _us(span.stall_s)) // whole) if whole > 0 else 0


def _us(seconds: float) -> int:
    return round(seconds * US)


def _sums(groups: Mapping[str, Iterable[LostTime]]) -> dict[str, float]:
    sums = {str(key): sum(row.us for row in rows) / US for key, rows in groups.items()}
    return {key: seconds for key, seconds in sums.items() if seconds}

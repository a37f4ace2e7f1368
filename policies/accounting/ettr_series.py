"""ETTR as a curve: the ratio so far and of each interval, at evenly spaced times of a job's life."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.models.base import Frozen
from holdfast.models.history import History
from holdfast.policies.accounting import timeline
from holdfast.policies.accounting.lost_time import US, Span, account


class Point(Frozen):
    """The end of one interval."""

    at: float
    """Unix seconds."""
    total: float
    """Productive share of the time from the begin until here, as the ETTR counts it."""
    interval: float
    """Productive share of the time since the point before."""


def series(history: History, until: float, points: int = 60) -> list[Point]:
    """Return the curve from the first epoch to ``until`` (Unix seconds) in ``points`` intervals; empty for no time.

    Each interval is accounted from the spans that touch it only, so that long histories cost little more than
    short ones.
    """
    begin = min((row.opened_at for row in history.epochs), default=until)
    if until <= begin or points < 1:
        return []
    epochs = sorted(history.epochs, key=lambda row: row.epoch)
    spans = timeline.spans(
        epochs, history.stretches, history.incidents, history.actions, history.states, until, history.want
    )
    width = (until - begin) / points
    found, productive, zero = [], 0, 0
    for number, touching in enumerate(_by_interval(spans, begin, width, points), start=1):
        at = begin + number * width
        part = account(touching, at - width, at)
        productive, zero = productive + part.productive_us, zero + part.zero_us
        total = _share(productive / US, at - begin - zero / US)
        found.append(Point(at=at, total=total, interval=part.ratio))
    return found


def _by_interval(spans: Sequence[Span], begin: float, width: float, points: int) -> list[list[Span]]:
    touching: list[list[Span]] = [[] for _ in range(points)]
    for span in spans:
        first = max(0, int((span.begin - begin) / width))
        last = min(points - 1, int((span.end - begin) / width))
        for number in range(first, last + 1):
            touching[number].append(span)
    return touching


def _share(part: float, whole: float) -> float:
    return min(1.0, part / whole) if whole > 0 else 0.0

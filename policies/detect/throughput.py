"""Detection of a lasting slowdown of a job. Robust statistics over its own steps: median and MAD."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from holdfast.models.base import Frozen
from holdfast.policies.config.thresholds import ThroughputLimits


class Decline(Frozen):
    """The recent steps against the job's own."""

    value: float
    """Median of the recent steps."""
    median: float
    """Median of the steps before."""
    limit: float
    factor: float
    """How many times worse."""


def slower(baseline: Sequence[float], recent: Sequence[float], limits: ThroughputLimits) -> Decline | None:
    """Judge step times in seconds; None: no decline, or too few steps to judge."""
    if not _enough(baseline, recent, limits):
        return None
    usual, now = median(baseline), median(recent)
    spread = median(abs(each - usual) for each in baseline)
    limit = max(limits.slower * usual, usual + limits.deviations * spread)
    if usual <= 0 or now <= limit:
        return None
    return Decline(value=now, median=usual, limit=limit, factor=now / usual)


def lower(baseline: Sequence[float], recent: Sequence[float], limits: ThroughputLimits) -> Decline | None:
    """Judge utilisations (MFU): as :func:`slower`, but less is worse."""
    if not _enough(baseline, recent, limits):
        return None
    usual, now = median(baseline), median(recent)
    spread = median(abs(each - usual) for each in baseline)
    limit = min(usual / limits.slower, usual - limits.deviations * spread)
    if usual <= 0 or now >= limit:
        return None
    return Decline(value=now, median=usual, limit=limit, factor=usual / now if now > 0 else float("inf"))


def _enough(baseline: Sequence[float], recent: Sequence[float], limits: ThroughputLimits) -> bool:
    return len(recent) >= limits.recent and len(baseline) >= 4 * limits.recent

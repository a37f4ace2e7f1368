"""Detection of jumps in loss or gradient norm. ByteRobust: a jump of 5x is treated as a fault signal."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from holdfast.models.base import Frozen
from holdfast.policies.config.thresholds import MetricLimits

_BELOW = 0.95
"""Share of the steps before that stayed below what counts as the tail."""


class Jump(Frozen):
    """A value far above the metric's usual one."""

    value: float
    median: float
    factor: float


def jump(history: Sequence[float], value: float, limits: MetricLimits) -> Jump | None:
    """Compare a finite ``value`` with the steps before it; None: no jump, or too few steps to judge.

    The median and the median absolute deviation are used because neither follows single outliers. Losses of small
    batches may have a long tail (a classifier that has nearly converged, a critic): there the worst steps of every
    twenty are many times the median, and a jump lies above these as well.
    """
    if len(history) < limits.warmup or value <= limits.floor:
        return None
    usual = median(history)
    if value <= limits.jump_factor * max(usual, limits.floor):
        return None
    spread = median(abs(each - usual) for each in history)
    if value <= usual + limits.jump_deviations * spread:
        return None
    if value <= limits.jump_tail * sorted(history)[int(_BELOW * (len(history) - 1))]:
        return None
    return Jump(value=value, median=usual, factor=value / max(usual, limits.floor))

"""A machine computes slower than the others: a processor quota for all its processes."""

from __future__ import annotations

import math
import time

import psutil

from holdfast.drivers import processes
from holdfast.errors import RefusedError
from holdfast.inject import cgroup
from holdfast.inject.journal import ControlGroup, Pen
from holdfast.inject.target import Target

PERIOD_US = 20_000
MOST_PERIOD_US = 1_000_000
LEAST_US = 1_000
"""Smallest quota that the kernel takes."""
_MEASURE_S = 2.0


def strike(target: Target, pen: Pen, percent: float) -> float:
    """Give the machine so much less processor time than it used in the last two seconds; return the cores left.

    Raises:
        RefusedError: it does not compute.
        UnavailableError: no control group can be made here.
    """
    parent = cgroup.parent_of("cpu")
    found = processes.find_all(target.folder)
    before = _used_s(found)
    time.sleep(_MEASURE_S)
    cores = (_used_s(found) - before) / _MEASURE_S
    if cores <= 0.02:
        raise RefusedError(f"machine {target.machine} computes nothing: slow down a machine of a running job")
    quota, period = limit(cores, percent)
    folder = parent / f"holdfast-slow-{target.key}"
    pen.note(ControlGroup(folder=folder, parent=parent))
    # Twice: what was started between the look and the move.
    for _ in range(2):
        limits = {
            "cpu.cfs_period_us": str(period),
            "cpu.cfs_quota_us": str(quota),
            "cpu.max": f"{quota} {period}",
        }
        cgroup.make(folder, limits, [process.pid for process in processes.find_all(target.folder)])
    return quota / period


def limit(cores: float, percent: float) -> tuple[int, int]:
    """Return quota and period in us that leave so much less than ``cores``; a small quota takes a longer period.

    Raises:
        RefusedError: the kernel has no quota so small.
    """
    left = cores * (1 - percent / 100)
    period = max(PERIOD_US, math.ceil(LEAST_US / left)) if left > 0 else MOST_PERIOD_US + 1
    if period > MOST_PERIOD_US:
        raise RefusedError(f"{percent:g} % less than {cores:.2f} cores is less than the kernel can give")
    return int(period * left + 1e-6), period


def _used_s(found: list[psutil.Process]) -> float:
    used = 0.0
    for process in found:
        try:
            times = process.cpu_times()
        except psutil.Error:
            continue
        used += times.user + times.system
    return used

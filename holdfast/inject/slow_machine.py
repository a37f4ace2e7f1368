"""A machine computes slower than the others: a processor quota for all its processes."""

from __future__ import annotations

import time

import psutil

from holdfast.drivers import processes
from holdfast.errors import RefusedError
from holdfast.inject import cgroup
from holdfast.inject.journal import Group, Pen
from holdfast.inject.target import Target

PERIOD_US = 20_000
LEAST_US = 1_000
_MEASURE_S = 2.0


def strike(target: Target, pen: Pen, percent: float) -> int:
    """Give the machine so much less processor time than it used in the last two seconds; returns the quota in us.

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
    quota = max(LEAST_US, int(PERIOD_US * cores * (1 - percent / 100)))
    folder = parent / f"holdfast-slow-{target.key}"
    pen.note(Group(folder=folder, parent=parent))
    # Twice: what was started between the look and the move.
    for _ in range(2):
        limits = {
            "cpu.cfs_period_us": str(PERIOD_US),
            "cpu.cfs_quota_us": str(quota),
            "cpu.max": f"{quota} {PERIOD_US}",
        }
        cgroup.make(folder, limits, [process.pid for process in processes.find_all(target.folder)])
    return quota


def _used_s(found: list[psutil.Process]) -> float:
    used = 0.0
    for process in found:
        try:
            times = process.cpu_times()
        except psutil.Error:
            continue
        used += times.user + times.system
    return used

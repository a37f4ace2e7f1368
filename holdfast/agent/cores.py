"""Cores that the processes of this machine may use."""

from __future__ import annotations

import math
import os
from pathlib import Path

QUOTA = Path("/sys/fs/cgroup/cpu.max")
"""Of this container, where it is one (cgroup 2)."""


def cores(quota: Path = QUOTA) -> int:
    """Return their number: those that this process may run on, or, where a container has fewer, its limit."""
    here = len(os.sched_getaffinity(0))
    try:
        limit, period = quota.read_text().split()
        return here if limit == "max" else max(1, min(here, math.ceil(int(limit) / int(period))))
    except (OSError, ValueError, ZeroDivisionError):  # no container, or another kind of limit
        return here

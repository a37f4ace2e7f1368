"""Time that the machine's processes wait because their control group has used its processor quota.

The kernel counts the periods of a quota, and those in which it was used up (``nr_throttled`` in ``cpu.stat``,
Documentation/admin-guide/cgroup-v2.rst). A container that computes against its limit is as slow as the limit makes it,
while the host looks idle.
"""

from __future__ import annotations

from pathlib import Path

from holdfast.agent.inspection.base import Sign
from holdfast.agent.inspection.own_groups import own_groups
from holdfast.models.alert import AlertKind
from holdfast.policies.config.thresholds import HostLimits

LEAST_PERIODS = 5
"""Fewer between two looks say nothing."""


class Throttled:
    """The share of periods in which this process's group was out of quota, since the last look."""

    name = "throttled"

    def __init__(self, limits: HostLimits, proc: Path, cgroups: Path, *, born_shared: bool = False) -> None:
        """Read ``proc/self/cgroup`` and the hierarchies mounted below ``cgroups``.

        ``born_shared``: the group at the start is that of several machines of one host, and accuses none of them.
        """
        self._limits = limits
        self._proc = proc
        self._cgroups = cgroups
        self._shared = self._group() if born_shared else None
        self._before: tuple[Path, int, int] | None = None

    def look(self) -> list[Sign]:
        """Return one sign; none without a quota, and none at the first look at a group."""
        group = self._group()
        counts = _counts(group / "cpu.stat") if group is not None and group != self._shared else None
        if group is None or counts is None:
            self._before = None
            return []
        before, self._before = self._before, (group, *counts)
        if before is None or before[0] != group:
            return []
        periods, waited = counts[0] - before[1], counts[1] - before[2]
        share = waited / periods if periods >= LEAST_PERIODS else 0.0
        limit = self._limits.cpu_pressure_share
        return [
            Sign(
                kind=AlertKind.CPU_PRESSURE,
                ok=share <= limit,
                detail=f"the processor quota was used up in {share:.0%} of its periods (limit {limit:.0%})",
                device="quota",
                value=share,
                limit=limit,
                misses=self._limits.misses,
            )
        ]

    def _group(self) -> Path | None:
        """Return the folder of this process's group with the counts of its quota; None: there is none."""
        groups = own_groups(self._proc, self._cgroups, "cpu")
        return next((folder for folder in groups if (folder / "cpu.stat").is_file()), None)


def _counts(path: Path) -> tuple[int, int] | None:
    """Return periods of the quota, and those in which it was used up; None: the group has no quota."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    fields = dict(line.split(maxsplit=1) for line in lines if " " in line)
    try:
        return int(fields["nr_periods"]), int(fields["nr_throttled"])
    except (KeyError, ValueError):
        return None

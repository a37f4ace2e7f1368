"""Pressure on the host: processes that wait for a processor, or stall for memory.

Source: pressure stall information, Documentation/accounting/psi.rst of the Linux kernel.
"""

from __future__ import annotations

from pathlib import Path

from holdfast.agent.inspection.base import Sign
from holdfast.models.alert import AlertKind
from holdfast.policies.config.thresholds import HostLimits


class Pressure:
    """Shares of the last minute. A kernel without PSI, or a shared host, shows nothing."""

    name = "pressure"

    def __init__(self, proc: Path, limits: HostLimits) -> None:
        self._folder = proc / "pressure"
        self._limits = limits

    def look(self) -> list[Sign]:
        """Return one sign per resource that the kernel reports."""
        return [
            self._sign(
                AlertKind.CPU_PRESSURE, share, self._limits.cpu_pressure_share, "some wait for a processor"
            )
            for share in _avg60(self._folder / "cpu", "some")
        ] + [
            self._sign(
                AlertKind.MEMORY_PRESSURE, share, self._limits.memory_pressure_share, "all stall for memory"
            )
            for share in _avg60(self._folder / "memory", "full")
        ]

    def _sign(self, kind: AlertKind, share: float, limit: float, text: str) -> Sign:
        return Sign(
            kind=kind,
            ok=share <= limit,
            detail=f"{text} in {share:.0%} of the last minute (limit {limit:.0%})",
            device="pressure",
            value=share,
            limit=limit,
            misses=self._limits.misses,
        )


def _avg60(path: Path, which: str) -> list[float]:
    """Return the share in a line such as ``some avg10=1.00 avg60=2.00 avg300=0.50 total=9``; empty: none."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    for line in lines:
        name, _, rest = line.partition(" ")
        fields = dict(part.split("=", 1) for part in rest.split() if "=" in part)
        if name == which and "avg60" in fields:
            try:
                return [float(fields["avg60"]) / 100]
            except ValueError:
                return []
    return []

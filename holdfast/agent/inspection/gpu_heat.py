"""GPU heat: temperatures of core and memory, and clocks that the hardware holds down."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from holdfast.agent.inspection.base import Sign
from holdfast.agent.inspection.nvml import GpuReading
from holdfast.models.alert import AlertKind
from holdfast.policies.config.thresholds import GpuLimits

REASONS = {
    0x08: "hw_slowdown",
    0x20: "sw_thermal",
    0x40: "hw_thermal",
    0x80: "hw_power_brake",
}
"""Bits of ``nvmlClocksEventReasons`` that are faults; idle, set clocks and the power cap are everyday."""


class GpuHeat:
    """Heat may come from outside the machine, so none of it is sure."""

    def __init__(self, limits: GpuLimits) -> None:
        self._limits = limits

    def judge(self, gpus: Sequence[GpuReading], now: float) -> list[Sign]:
        """Return bad signs."""
        return [sign for gpu in gpus for sign in self._of(gpu)]

    def _of(self, gpu: GpuReading) -> Iterator[Sign]:
        sensors = (
            ("core", gpu.temperature_c, gpu.shutdown_c, self._limits.shutdown_margin_c),
            ("memory", gpu.memory_c, gpu.memory_max_c, self._limits.memory_margin_c),
        )
        for sensor, value, top, margin in sensors:
            if value is not None and top and value >= top - margin:
                yield Sign(
                    kind=AlertKind.GPU_TEMPERATURE,
                    ok=False,
                    detail=f"GPU {gpu.index}: {sensor} at {value} C (limit {top - margin:g} C)",
                    device=f"GPU {gpu.index} {sensor}",
                    value=value,
                    limit=top - margin,
                    evidence={"sensor": sensor},
                    misses=self._limits.misses,
                )
        reasons = [name for bit, name in REASONS.items() if (gpu.throttle or 0) & bit]
        if reasons:
            yield Sign(
                kind=AlertKind.GPU_THROTTLED,
                ok=False,
                detail=f"GPU {gpu.index}: clocks held down by {', '.join(reasons)}",
                device=f"GPU {gpu.index}",
                evidence={"reasons": reasons},
                misses=self._limits.misses,
            )

"""Settings of GPUs that make a machine slower than its peers: persistence mode, clocks, power limit.

EUD is known to have left clocks lowered (arXiv 2509.16293, section 5).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import mode

from holdfast.agent.inspection.base import Sign
from holdfast.agent.inspection.nvml import GpuReading
from holdfast.models.alert import AlertKind
from holdfast.policies.config.thresholds import GpuLimits


class GpuSettings:
    """Compares a GPU with its own defaults and with the machine's other GPUs."""

    def __init__(self, limits: GpuLimits) -> None:
        self._limits = limits

    def judge(self, gpus: Sequence[GpuReading], now: float) -> list[Sign]:
        """Return bad signs."""
        clocks = [gpu.sm_clock_mhz for gpu in gpus if gpu.sm_clock_mhz]
        usual = mode(clocks) if len(clocks) > 2 else None
        return [sign for gpu in gpus for sign in self._of(gpu, usual)]

    def _of(self, gpu: GpuReading, usual_clock: int | None) -> Iterator[Sign]:
        if gpu.persistence is False:
            yield self._sign(gpu, "persistence", "persistence mode is off")
        expected = max(usual_clock or 0, gpu.default_sm_clock_mhz or 0)
        if gpu.sm_clock_mhz and gpu.sm_clock_mhz < expected:
            detail = f"application clock is {gpu.sm_clock_mhz} MHz instead of {expected}"
            yield self._sign(gpu, "sm_clock", detail, gpu.sm_clock_mhz, expected)
        if gpu.power_limit_w and gpu.default_power_limit_w:
            least = self._limits.power_limit_share * gpu.default_power_limit_w
            if gpu.power_limit_w < least:
                detail = f"power limit is {gpu.power_limit_w:.0f} W of {gpu.default_power_limit_w:.0f}"
                yield self._sign(gpu, "power_limit", detail, gpu.power_limit_w, least)

    def _sign(
        self,
        gpu: GpuReading,
        setting: str,
        text: str,
        value: float | None = None,
        limit: float | None = None,
    ) -> Sign:
        return Sign(
            kind=AlertKind.GPU_SETTINGS,
            ok=False,
            detail=f"GPU {gpu.index}: {text}",
            device=f"GPU {gpu.index} {setting}",
            value=value,
            limit=limit,
            evidence={"setting": setting},
            misses=self._limits.misses,
        )

"""GPU memory: uncorrectable and too many correctable errors, rows that wait for or failed remapping.

Source: NVIDIA GPU memory error management, https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt/
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from holdfast.agent.inspection.base import Sign
from holdfast.agent.inspection.nvml import GpuReading
from holdfast.agent.inspection.rates import Rates
from holdfast.models.alert import AlertKind
from holdfast.policies.config.thresholds import GpuLimits

WINDOW_S = 3600.0


class GpuMemory:
    """Counts new errors, not those from before this check was made."""

    def __init__(self, limits: GpuLimits) -> None:
        self._limits = limits
        self._uncorrected: dict[int, int] = {}
        self._corrected = Rates()
        self._spent: dict[int, float] = {}

    def judge(self, gpus: Sequence[GpuReading], now: float) -> list[Sign]:
        """Return bad signs."""
        return [sign for gpu in gpus for sign in self._of(gpu, now)]

    def _of(self, gpu: GpuReading, now: float) -> Iterator[Sign]:
        device = f"GPU {gpu.index}"
        if gpu.uncorrected_ecc is not None:
            before = self._uncorrected.setdefault(gpu.index, gpu.uncorrected_ecc)
            if gpu.uncorrected_ecc < before:  # the driver was reloaded
                before = self._uncorrected[gpu.index] = gpu.uncorrected_ecc
            if (new := gpu.uncorrected_ecc - before) > 0:
                detail = f"{device}: {new} new uncorrectable memory errors"
                yield Sign(
                    kind=AlertKind.GPU_ECC_UNCORRECTABLE,
                    ok=False,
                    detail=detail,
                    device=device,
                    value=new,
                    limit=0,
                    sure=True,
                )
        if gpu.corrected_ecc is not None and (excess := self._excess(gpu.index, gpu.corrected_ecc, now)):
            limit = self._limits.correctable_per_hour
            yield Sign(
                kind=AlertKind.GPU_ECC_CORRECTABLE,
                ok=False,
                detail=f"{device}: {excess:.0f} correctable memory errors within an hour (limit {limit:g})",
                device=device,
                value=excess,
                limit=limit,
            )
        if gpu.remap_failed:
            yield Sign(
                kind=AlertKind.GPU_ROW_REMAP_FAILED,
                ok=False,
                detail=f"{device}: a memory row could not be remapped",
                device=device,
                sure=True,
            )
        elif gpu.remap_pending:
            yield Sign(
                kind=AlertKind.GPU_ROW_REMAP_PENDING,
                ok=False,
                detail=f"{device}: a memory row waits for a reset to be remapped",
                device=device,
            )

    def _excess(self, index: int, count: int, now: float) -> float:
        """Return the errors of about the last hour when they exceed the limit, else 0: a bucket that leaks steadily."""
        limit = self._limits.correctable_per_hour
        grown, seconds = self._corrected.growth(index, count, now)
        level = max(0.0, self._spent.get(index, 0.0) - limit * seconds / WINDOW_S) + grown
        self._spent[index] = min(level, 2 * limit)
        return level if level > limit else 0.0

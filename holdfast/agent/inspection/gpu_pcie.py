"""PCIe links of GPUs: generation, width, and packets sent again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from holdfast.agent.inspection.base import Sign
from holdfast.agent.inspection.nvml import GpuReading
from holdfast.agent.inspection.rates import Rates
from holdfast.models.alert import AlertKind
from holdfast.policies.config.thresholds import GpuLimits


class GpuPcie:
    """A link may run slower while its GPU is idle, to save power: its generation counts under load only."""

    def __init__(self, limits: GpuLimits) -> None:
        self._limits = limits
        self._replays = Rates()

    def judge(self, gpus: Sequence[GpuReading], now: float) -> list[Sign]:
        """Return bad signs."""
        return [sign for gpu in gpus for sign in (*self._link(gpu), *self._repeats(gpu, now))]

    def _link(self, gpu: GpuReading) -> Iterator[Sign]:
        slow = bool(gpu.busy) and _below(gpu.pcie_generation, gpu.pcie_best_generation)
        narrow = _below(gpu.pcie_width, gpu.pcie_best_width)
        if slow or narrow:
            yield Sign(
                kind=AlertKind.GPU_PCIE_LINK,
                ok=False,
                detail=f"GPU {gpu.index}: PCIe generation {gpu.pcie_generation} of {gpu.pcie_best_generation}, "
                f"width {gpu.pcie_width} of {gpu.pcie_best_width}",
                device=f"GPU {gpu.index}",
                evidence={
                    "generation": gpu.pcie_generation,
                    "width": gpu.pcie_width,
                    "best_generation": gpu.pcie_best_generation,
                    "best_width": gpu.pcie_best_width,
                },
                misses=self._limits.misses,
            )

    def _repeats(self, gpu: GpuReading, now: float) -> Iterator[Sign]:
        if gpu.pcie_replays is None:
            return
        rate, limit = (
            60 * self._replays.per_s(gpu.index, gpu.pcie_replays, now),
            (self._limits.pcie_replays_per_minute),
        )
        if rate > limit:
            yield Sign(
                kind=AlertKind.GPU_PCIE_REPLAYS,
                ok=False,
                detail=f"GPU {gpu.index}: {rate:.0f} PCIe replays per minute (limit {limit:g})",
                device=f"GPU {gpu.index}",
                value=rate,
                limit=limit,
            )


def _below(value: int | None, best: int | None) -> bool:
    return value is not None and best is not None and value < best

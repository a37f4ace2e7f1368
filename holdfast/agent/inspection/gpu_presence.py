"""GPUs that are lost: they do not answer, the driver counts fewer than before, or it is gone."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.agent.inspection.base import Sign
from holdfast.agent.inspection.nvml import GpuReading
from holdfast.models.alert import AlertKind


class GpuPresence:
    """Remembers how many GPUs there were."""

    def __init__(self) -> None:
        self._count = 0

    def judge(self, readings: Sequence[GpuReading] | None) -> list[Sign]:
        """Return signs of lost GPUs; ``None``: there is no driver."""
        if readings is None:
            gone = f"the driver is gone; {self._count} GPUs were there before"
            return [_lost("driver", gone)] if self._count else []
        signs = [_of(gpu) for gpu in readings if gpu.error]
        if len(readings) < self._count and not signs:
            signs = [_lost("driver", f"{len(readings)} GPUs; {self._count} were there before")]
        self._count = max(self._count, sum(gpu.index >= 0 for gpu in readings))
        return signs

    def good(self, count: int) -> Sign:
        """Return the sign for when nothing is bad."""
        return Sign(kind=AlertKind.GPU_LOST, ok=True, detail=f"{count} GPUs")


def _of(gpu: GpuReading) -> Sign:
    device = f"GPU {gpu.index}" if gpu.index >= 0 else "driver"
    error = f"{device}: {gpu.error}"
    if gpu.lost:
        return _lost(device, error, gpu.pci)
    # A missing permission or a busy driver is no loss; it is reported when it lasts.
    return Sign(
        kind=AlertKind.HOST_FAULT,
        ok=False,
        detail=error,
        device=device,
        evidence={"check": "gpu_error", "error": error},
        misses=3,
    )


def _lost(device: str, error: str, pci: str = "") -> Sign:
    return Sign(
        kind=AlertKind.GPU_LOST,
        ok=False,
        detail=error,
        device=device,
        evidence={"error": error, **({"pci": pci} if pci else {})},
        sure=True,
    )

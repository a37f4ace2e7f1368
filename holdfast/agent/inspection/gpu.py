"""The GPUs of the machine: read once per interval, judged by small checks, one per kind of fault."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from holdfast.agent.inspection.base import Sign
from holdfast.agent.inspection.gpu_heat import GpuHeat
from holdfast.agent.inspection.gpu_memory import GpuMemory
from holdfast.agent.inspection.gpu_pcie import GpuPcie
from holdfast.agent.inspection.gpu_presence import GpuPresence
from holdfast.agent.inspection.gpu_settings import GpuSettings
from holdfast.agent.inspection.nvlink import NvLinks
from holdfast.agent.inspection.nvml import GpuReading, Gpus
from holdfast.policies.config.thresholds import GpuLimits


class GpuCheck(Protocol):
    """Judges readings; keeps what it needs to see a change."""

    def judge(self, gpus: Sequence[GpuReading], now: float) -> list[Sign]:
        """Return bad signs in readings of GPUs that answered, taken at ``now`` (monotonic seconds)."""
        ...


class GpuHealth:
    """A :class:`~holdfast.agent.inspection.base.Check`; without a driver it sees nothing and reports nothing."""

    name = "gpu"

    def __init__(self, limits: GpuLimits, gpus: Gpus, clock: Callable[[], float]) -> None:
        self._gpus = gpus
        self._clock = clock
        self._presence = GpuPresence()
        self._checks: tuple[GpuCheck, ...] = (
            GpuMemory(limits),
            GpuHeat(limits),
            GpuPcie(limits),
            NvLinks(limits),
            GpuSettings(limits),
        )

    def look(self) -> list[Sign]:
        """Return bad signs; one good one when there are GPUs and none is bad."""
        readings = self._gpus.read()
        signs = self._presence.judge(readings)
        if readings is None:
            return signs
        answering = [gpu for gpu in readings if not gpu.error]
        now = self._clock()
        signs += [sign for check in self._checks for sign in check.judge(answering, now)]
        return signs or [self._presence.good(len(readings))]

"""Current activity of the machine's GPUs and ports, reported in heartbeats: hangs are judged by it.

Read as often as heartbeats go out, by a thread of its own: a driver that does not answer holds up nothing else.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from statistics import fmean

from holdfast.agent.inspection import ports
from holdfast.agent.inspection.gpm import Gpm, GpuLoad
from holdfast.agent.inspection.nvml import Nvml
from holdfast.agent.inspection.rates import Rates
from holdfast.models.agent import Vitals
from holdfast.models.alert import Alert, Finding
from holdfast.policies.config.thresholds import NetworkLimits


class Activity:
    """A :class:`~holdfast.agent.inspection.base.Detector` that finds no faults: the gateway sees a whole job."""

    name = "activity"
    blocking = True

    def __init__(
        self,
        interval_s: float,
        nvml: Nvml,
        sys: Path,
        limits: NetworkLimits,
        clock: Callable[[], float],
    ) -> None:
        self.interval_s = interval_s
        self._nvml, self._gpm = nvml, Gpm()
        self._sys, self._limits = sys, limits
        self._clock = clock
        self._rates = Rates()
        self.vitals = Vitals()
        """Of the newest reading."""

    def poll(self) -> list[Alert]:
        """Read the activity; return no alerts."""
        busy, loads = self._gpus()
        known = [each for each in loads if each is not None]
        whole = known if len(known) == len(loads) else []
        self.vitals = Vitals(
            gpu_busy=fmean(busy) if busy else None,
            sm_active=max(each.sm for each in whole) if whole else None,
            tensor_active=max(each.tensor for each in whole) if whole else None,
            traffic_bytes_s=self._traffic(),
        )
        return []

    def inspect(self) -> list[Finding]:
        """Return nothing: there is no fault to find."""
        return []

    def _gpus(self) -> tuple[list[float], list[GpuLoad | None]]:
        """Return utilisation, and load, of each GPU that answers."""
        nvml = self._nvml.loaded()
        busy: list[float] = []
        loads: list[GpuLoad | None] = []
        if nvml is None:
            return busy, loads
        try:
            count = nvml.nvmlDeviceGetCount()
        except nvml.NVMLError:
            return busy, loads
        for index in range(count):
            load = None
            with contextlib.suppress(nvml.NVMLError):
                gpu = nvml.nvmlDeviceGetHandleByIndex(index)
                busy.append(nvml.nvmlDeviceGetUtilizationRates(gpu).gpu / 100)
                load = self._gpm.read(nvml, index, gpu)
            loads.append(load)
        return busy, loads

    def _traffic(self) -> float | None:
        """Return the bytes of all ports per second; None: no ports, or the first reading."""
        total = ports.traffic(self._sys, self._limits.interfaces, self._limits.ignored)
        if total is None:
            return None
        grown, seconds = self._rates.growth("bytes", total, self._clock())
        return grown / seconds if seconds else None

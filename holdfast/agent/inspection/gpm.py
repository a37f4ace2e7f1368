"""How busy the SMs and tensor cores of GPUs are, from NVML's GPU performance monitoring (Hopper and later).

The same as DCGM's ``DCGM_FI_PROF_SM_ACTIVE`` and ``DCGM_FI_PROF_PIPE_TENSOR_ACTIVE``. A kernel that waits for a peer
makes a GPU look fully utilised (NVML's ``utilization.gpu``); these distinguish it from one that computes.
"""

from __future__ import annotations

from typing import Any

from holdfast.models.base import Frozen


class GpuLoad(Frozen):
    """Load of one GPU since the last reading: shares from 0 to 1."""

    sm: float
    """Of its SMs that were busy."""
    tensor: float
    """Of the time in which SMs did any tensor operation."""


class Gpm:
    """Keeps one sample of each GPU; the next one makes the share."""

    def __init__(self) -> None:
        self._last: dict[int, Any] = {}

    def read(self, nvml: Any, index: int, gpu: Any) -> GpuLoad | None:
        """Return the load since the last reading; None at the first one, and where the GPU does not report it.

        Raises:
            NVMLError: the GPU does not report it.
        """
        if not nvml.nvmlGpmQueryDeviceSupport(gpu).isSupportedDevice:
            return None
        now = nvml.nvmlGpmSampleAlloc()
        try:
            nvml.nvmlGpmSampleGet(gpu, now)
        except nvml.NVMLError:
            nvml.nvmlGpmSampleFree(now)  # there is nothing in it to compare with
            raise
        before, self._last[index] = self._last.get(index), now
        if before is None:
            return None
        try:
            return _between(nvml, before, now)
        finally:
            nvml.nvmlGpmSampleFree(before)


def _between(nvml: Any, before: Any, now: Any) -> GpuLoad | None:
    asked = nvml.c_nvmlGpmMetricsGet_t()
    asked.version, asked.numMetrics = nvml.NVML_GPM_METRICS_GET_VERSION, 2
    asked.sample1, asked.sample2 = before, now
    asked.metrics[0].metricId = nvml.NVML_GPM_METRIC_SM_UTIL
    asked.metrics[1].metricId = nvml.NVML_GPM_METRIC_ANY_TENSOR_UTIL
    nvml.nvmlGpmMetricsGet(asked)
    readings = asked.metrics[:2]
    if any(each.nvmlReturn != nvml.NVML_SUCCESS for each in readings):
        return None
    return GpuLoad(sm=readings[0].value / 100, tensor=readings[1].value / 100)

"""Commands of Holdfast's agent on the machine: read the heat, hold the clocks."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Protocol

SIMULATED = "HOT_GPUS_FILE"
"""Names a file beside the machine's agent that stands for its GPUs: for trying this without any."""


class Gpus(Protocol):
    """The GPUs of this machine."""

    def throttling(self) -> list[str]:
        """Names of those that the hardware slows down for heat."""
        ...

    def lock(self, mhz: int | None) -> None:
        """Hold all clocks at ``mhz`` at most; None: let them go."""
        ...


class NvmlGpus:
    """The real ones. Locking clocks needs root, or the driver's permission for others."""

    def __init__(self) -> None:
        import pynvml

        self._nvml = pynvml
        pynvml.nvmlInit()
        self._handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]

    def throttling(self) -> list[str]:
        """Hardware and software thermal slowdown."""
        nvml = self._nvml
        thermal = (
            nvml.nvmlClocksThrottleReasonHwThermalSlowdown | nvml.nvmlClocksThrottleReasonSwThermalSlowdown
        )
        reasons = [nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle) for handle in self._handles]
        return [f"GPU {index}" for index, reason in enumerate(reasons) if reason & thermal]

    def lock(self, mhz: int | None) -> None:
        """Through the driver."""
        for handle in self._handles:
            if mhz is None:
                self._nvml.nvmlDeviceResetGpuLockedClocks(handle)
            else:
                self._nvml.nvmlDeviceSetGpuLockedClocks(handle, 0, mhz)


class SimulatedGpus:
    """A JSON file: ``{"hot_above_mhz": 1200, "mhz": 1980}``. One GPU, hot when its clock is above that."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def throttling(self) -> list[str]:
        """GPU 0, or none."""
        gpu = json.loads(self._path.read_text())
        return ["GPU 0"] if gpu["mhz"] > gpu["hot_above_mhz"] else []

    def lock(self, mhz: int | None) -> None:
        """Written at once and whole."""
        gpu = json.loads(self._path.read_text()) | {"mhz": mhz or 1980}
        new = self._path.with_suffix(".new")
        new.write_text(json.dumps(gpu))
        os.replace(new, self._path)


def here(machine: str, home: Path) -> Gpus:
    """This machine's GPUs."""
    name = os.environ.get(SIMULATED)
    return SimulatedGpus(home / "machines" / machine / name) if name else NvmlGpus()


def lock_clocks(machine: str, home: Path, values: dict[str, Any]) -> dict[str, Any]:
    """Command: hold the clocks at ``mhz``; without it, let them go. Safe to repeat."""
    here(machine, home).lock(values.get("mhz"))
    return {"mhz": values.get("mhz")}


def gpu_heat(machine: str, home: Path, values: dict[str, Any]) -> dict[str, Any]:
    """Command: which GPUs throttle for heat."""
    return {"throttling": here(machine, home).throttling()}

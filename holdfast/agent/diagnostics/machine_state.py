"""Machine state that a diagnosis must not change: GPU clocks, limits and modes.

Its processes end by themselves: each is killed at its deadline, by the caller that waits and by its own alarm.

EUD may lower the clocks and leave them so (ByteRobust): the state is read before and after, changes are reverted,
and a change that cannot be reverted is a finding.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from holdfast.models.alert import Finding
from holdfast.models.base import Frozen

_DEVICE = re.compile(r" *(?:\d{1,4} *$|GPU-|MIG-)")
"""One that a process may see; CUDA ignores all from the first other word on (``-1``, Slurm's ``NoDevFiles``)."""

ROOM_BYTES = 4 << 30
"""Memory of a GPU that a check may take: its context, and the matrices of the largest."""
_ROOM = f"{ROOM_BYTES / 2**30:g} GiB"


class GpuState(Frozen):
    """The settings of one GPU. None: it does not report the setting."""

    persistence: int | None = None
    max_sm_mhz: int | None = None
    application_sm_mhz: int | None = None
    application_memory_mhz: int | None = None
    power_limit_mw: int | None = None
    compute_mode: int | None = None


class GpuStates(Frozen):
    """The settings of all GPUs."""

    gpus: tuple[GpuState, ...] = ()


class Settings(Protocol):
    """Reads and restores GPU settings."""

    def read(self) -> GpuStates:
        """Return the current state; empty without GPUs."""
        ...

    def restore(self, index: int, name: str, before: GpuState) -> str:
        """Restore one setting of one GPU; return why it could not be, empty when it was."""
        ...


def changes(before: GpuStates, after: GpuStates) -> list[tuple[int, str, object, object]]:
    """Return (GPU, setting, before, after) of all that differs. Pure."""
    found: list[tuple[int, str, object, object]] = []
    if len(before.gpus) != len(after.gpus):
        found.append((-1, "gpus", len(before.gpus), len(after.gpus)))
    for index, (was, now) in enumerate(zip(before.gpus, after.gpus, strict=False)):
        for name in GpuState.model_fields:
            old, new = getattr(was, name), getattr(now, name)
            if old is not None and old != new:
                found.append((index, name, old, new))
    return found


def put_back(machine: str, settings: Settings, before: GpuStates) -> list[Finding]:
    """Compare with ``before``, restore what a check changed, and report it; nothing when nothing changed."""
    findings = []
    for index, name, old, new in changes(before, settings.read()):
        gone = "GPUs appeared or went away"
        why = gone if index < 0 else settings.restore(index, name, before.gpus[index])
        what = f"{name} of GPU {index} was {old}, the diagnosis left it at {new}"
        detail = f"{what}; {f'could not be put back: {why}' if why else 'put back'}"
        findings.append(Finding(check="machine_state", machine=machine, ok=not why, detail=detail))
    return findings


def visible_gpus() -> int:
    """Return how many GPUs the processes of this machine's checks see; 0: none, or their driver is gone."""
    nvml = _nvml()
    if nvml is None:
        return 0
    try:
        count = int(nvml.nvmlDeviceGetCount())
    except nvml.NVMLError:
        return 0
    if (shown := os.environ.get("CUDA_VISIBLE_DEVICES")) is None:
        return count
    return min(count, len([*itertools.takewhile(_DEVICE.match, shown.split(","))]))


def without_room(ranks: Iterable[int]) -> str:
    """Return which GPU of a check's processes ``ranks`` has too little free memory for it; empty: none is known to."""
    seen, nvml = visible_gpus(), _nvml()
    shown = [each.strip() for each in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if each.strip()]
    if not all(each.isdecimal() for each in shown):
        return ""  # named otherwise than by their numbers
    for rank in ranks:
        if rank >= seen:
            break
        index = int(shown[rank]) if rank < len(shown) else rank
        try:
            free = int(nvml.nvmlDeviceGetMemoryInfo(nvml.nvmlDeviceGetHandleByIndex(index)).free)
        except nvml.NVMLError:
            continue
        if free < ROOM_BYTES:
            return f"GPU {index} has {free / 2**30:.1f} GiB of memory free, and a check may take {_ROOM}"
    return ""


class NvmlSettings:
    """The real GPU settings, through pynvml."""

    _SETTERS: Mapping[str, str] = {
        "persistence": "nvmlDeviceSetPersistenceMode",
        "power_limit_mw": "nvmlDeviceSetPowerManagementLimit",
        "compute_mode": "nvmlDeviceSetComputeMode",
    }

    def read(self) -> GpuStates:
        """Return the current state."""
        nvml = _nvml()
        if nvml is None:
            return GpuStates()
        try:
            count = nvml.nvmlDeviceGetCount()
        except nvml.NVMLError:
            return GpuStates()
        return GpuStates(gpus=tuple(self._one(nvml, index) for index in range(count)))

    def restore(self, index: int, name: str, before: GpuState) -> str:
        """Restore one setting."""
        nvml = _nvml()
        try:
            gpu = nvml.nvmlDeviceGetHandleByIndex(index)
            if name in self._SETTERS:
                getattr(nvml, self._SETTERS[name])(gpu, getattr(before, name))
            elif name.startswith("application_"):
                memory, core = before.application_memory_mhz, before.application_sm_mhz
                nvml.nvmlDeviceSetApplicationsClocks(gpu, memory, core)
            else:
                nvml.nvmlDeviceResetGpuLockedClocks(gpu)
        except (nvml.NVMLError, TypeError) as error:
            return str(error)
        return ""

    def _one(self, nvml: Any, index: int) -> GpuState:
        def ask(name: str, *arguments: Any) -> int | None:
            try:
                gpu = nvml.nvmlDeviceGetHandleByIndex(index)
                return int(getattr(nvml, name)(gpu, *arguments))
            except nvml.NVMLError:
                return None

        return GpuState(
            persistence=ask("nvmlDeviceGetPersistenceMode"),
            max_sm_mhz=ask("nvmlDeviceGetMaxClockInfo", nvml.NVML_CLOCK_SM),
            application_sm_mhz=ask("nvmlDeviceGetApplicationsClock", nvml.NVML_CLOCK_SM),
            application_memory_mhz=ask("nvmlDeviceGetApplicationsClock", nvml.NVML_CLOCK_MEM),
            power_limit_mw=ask("nvmlDeviceGetPowerManagementLimit"),
            compute_mode=ask("nvmlDeviceGetComputeMode"),
        )


def _nvml() -> Any:
    import pynvml  # noqa: PLC0415  (only where a diagnosis runs)

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    return pynvml

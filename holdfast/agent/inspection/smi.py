"""GPUs as ``nvidia-smi -q`` shows them, where NVML cannot be loaded into the agent and the tool is installed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import count

from holdfast.agent.inspection.nvml import GpuReading, Gpus
from holdfast.agent.inspection.tool import Tool

_GPU = re.compile(r"^GPU ([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2})\.\d\s*$")
_ROW = re.compile(r"^( {4,40})(\S[^:]{0,60}?)\s*(?:: (.{0,200}))?$")
_NO_HANDLE = re.compile(
    r"Unable to determine the device handle for (?:GPU|gpu)(?:(?P<index>\d{1,3}): | )?"
    r"(?P<pci>[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2})\.\d: (?P<why>[^`\n]{1,120})"
)
_ATTACHED = re.compile(r"^Attached GPUs\s*: (\d{1,3})\s*$", re.MULTILINE)
_UPDATED = "Driver/library version mismatch"
"""The files of the driver were replaced under it: the tool cannot ask it before a reboot, while ranks run on."""
_LOST = ("is lost", "unknown error", "requires reset", "fallen off")
Values = dict[tuple[str, ...], str]
"""Value by the headings above it, the outermost first."""


class Smi:
    """GPUs of the first source that has any: NVML, else the tool.

    A tool that does not end in time, or ends in the middle, reports no loss: its last readings stand.
    """

    def __init__(self, nvml: Gpus, tool: Tool) -> None:
        self._nvml = nvml
        self._tool = tool
        self._last: list[GpuReading] | None = None

    def read(self) -> list[GpuReading] | None:
        """Return one reading per GPU that is reported; None where neither source reports any."""
        readings = self._nvml.read()
        if readings is not None or not self._tool.installed:
            return readings
        output = self._tool.ask("-q", errors=True)
        if _UPDATED in output:
            return [GpuReading(index=-1, error=_UPDATED)]
        found, before = read(output), len(self._last or ())
        attached = _ATTACHED.search(output)
        cut_off = attached is not None and len(found) < before <= int(attached[1])
        if output.strip() and not cut_off:
            self._last = found or None
        return self._last


def read(output: str) -> list[GpuReading]:
    """Return the GPUs in the tool's output, and those that it could not open."""
    lost = list(_unopened(output))
    taken = {gpu.index for gpu in lost}
    free = (index for index in count() if index not in taken)
    return [
        *lost,
        *(_reading(index, pci, values) for index, (pci, values) in zip(free, _opened(output), strict=False)),
    ]


def _unopened(output: str) -> Iterator[GpuReading]:
    for found in _NO_HANDLE.finditer(output):
        why = found["why"].strip()
        yield GpuReading(
            index=int(found["index"]) if found["index"] else -1,
            pci=_pci(found["pci"]),
            error=why,
            lost=any(word in why.lower() for word in _LOST),
        )


def _opened(output: str) -> Iterator[tuple[str, Values]]:
    pci, values, above = "", Values(), list[tuple[int, str]]()
    for line in output.splitlines():
        if head := _GPU.match(line):
            if pci:
                yield pci, values
            pci, values, above = _pci(head[1]), {}, []
        elif pci and (row := _ROW.match(line)):
            above = [(depth, name) for depth, name in above if depth < len(row[1])]
            if row[3] is None:
                above.append((len(row[1]), row[2].strip()))
            else:
                values[(*(name for _, name in above), row[2].strip())] = row[3].strip()
    if pci:
        yield pci, values


def _reading(index: int, pci: str, values: Values) -> GpuReading:
    uncorrected = [
        int(value)
        for path, value in values.items()
        if path[:2] == ("ECC Errors", "Volatile") and "Uncorrectable" in path[-1] and value.isdecimal()
    ]
    if asked := _asked_for(values):
        return GpuReading(index=index, pci=pci, error=asked, lost=True)
    return GpuReading(
        index=index,
        pci=pci,
        uncorrected_ecc=sum(uncorrected) if uncorrected else None,
        remap_pending=_yes(values.get(("Remapped Rows", "Pending"))),
        remap_failed=_yes(values.get(("Remapped Rows", "Remapping Failure Occurred"))),
    )


def _asked_for(values: Values) -> str:
    """Return what the driver asks for before any process may use the GPU again; empty: nothing.

    Drivers since 565 name an action (``Reset``, ``GPU_RESET``, ``Reboot``); before, whether a reset is required. One
    that is to be drained first works on until its processes have ended.
    """
    action = values.get(("GPU Recovery Action",), "")
    words = action.lower()
    if ("reset" in words or "reboot" in words) and "drain" not in words:
        return f"GPU recovery action: {action}"
    return "reset required" if _yes(values.get(("GPU Reset Status", "Reset Required"))) else ""


def _yes(value: str | None) -> bool | None:
    return {"Yes": True, "No": False}.get((value or "").partition(" ")[0])


def _pci(address: str) -> str:
    """Return ``00000000:3B:00`` as the kernel log writes it, ``0000:3b:00``."""
    domain, rest = address.split(":", 1)
    return f"{domain[-4:]}:{rest}".lower()

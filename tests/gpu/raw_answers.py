"""All that NVML answers about the first GPU, as JSON: ``python -m tests.gpu.raw_answers``.

A process of its own: what a driver makes of a question that it does not know is its own affair.
"""

from __future__ import annotations

import json
import sys
from typing import Any

PLAIN = (
    *("Name", "UUID", "VbiosVersion", "PciInfo", "Brand", "ComputeMode", "PersistenceMode", "PowerState"),
    *("PowerUsage", "EccMode", "EnforcedPowerLimit", "PowerManagementLimit", "PowerManagementDefaultLimit"),
    *("RemappedRows", "CurrentClocksEventReasons", "SupportedClocksEventReasons", "MaxPcieLinkGeneration"),
    *("CurrPcieLinkGeneration", "GpuMaxPcieLinkGeneration", "CurrPcieLinkWidth", "MaxPcieLinkWidth"),
    *("PcieSpeed", "PcieReplayCounter", "UtilizationRates", "MemoryInfo", "BAR1MemoryInfo"),
    *("ComputeRunningProcesses", "MarginTemperature", "GspFirmwareVersion", "GspFirmwareMode"),
    *("VirtualizationMode", "SupportedEventTypes", "RetiredPagesPendingStatus", "NumGpuCores"),
    *("TotalEnergyConsumption", "MigMode", "DefaultEccMode", "MinorNumber"),
)
NUMBERED: dict[str, range] = {
    "TemperatureThreshold": range(8),
    "RetiredPages": range(2),
    "ApplicationsClock": range(4),
    "DefaultApplicationsClock": range(4),
    "ClockInfo": range(4),
    "MaxClockInfo": range(4),
    "NvLinkState": range(19),
    "NvLinkRemoteDeviceType": range(19),
    "NvLinkVersion": range(19),
}
FIELDS = range(1, 275)
COUNTERS = range(5)


def answers() -> dict[str, str]:
    """Every question with its answer, or why there is none."""
    import pynvml  # noqa: PLC0415

    pynvml.nvmlInit()
    gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
    found = {"driver": _driver(pynvml)}
    found |= {name: _asked(pynvml, name, gpu) for name in PLAIN}
    for name, numbers in NUMBERED.items():
        found |= {f"{name} {number}": _asked(pynvml, name, gpu, number) for number in numbers}
    for link in (0, 17):
        found |= {
            f"NvLinkErrorCounter {link} {code}": _asked(pynvml, "NvLinkErrorCounter", gpu, link, code)
            for code in COUNTERS
        }
    for value in pynvml.nvmlDeviceGetFieldValues(gpu, list(FIELDS)):
        field = value.value
        found[f"field {value.fieldId}"] = (
            f"return {value.nvmlReturn}, type {value.valueType}, unsigned {field.uiVal}, signed {field.siVal}, "
            f"wide {field.ullVal}, double {field.dVal:g}"
        )
    return found


def _driver(nvml: Any) -> str:
    try:
        return str(nvml.nvmlSystemGetDriverVersion())
    except nvml.NVMLError as error:
        return str(error)


def _asked(nvml: Any, name: str, gpu: Any, *more: int) -> str:
    try:
        found = getattr(nvml, f"nvmlDeviceGet{name}")(gpu, *more)
    except AttributeError:
        return "no such function"
    except (nvml.NVMLError, TypeError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    if isinstance(found, bytes):
        return found.decode(errors="replace")
    if fields := getattr(found, "_fields_", None):
        return ", ".join(f"{each[0]} {getattr(found, each[0])}" for each in fields)
    return str([str(each) for each in found] if isinstance(found, list) else found)


if __name__ == "__main__":
    json.dump(answers(), sys.stdout, indent=1)

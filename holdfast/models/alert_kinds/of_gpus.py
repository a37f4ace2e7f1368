"""Signals of GPUs, their memory, their links and their drivers."""

from __future__ import annotations

from holdfast.models.alert_kinds.kind import AtALook, Kind, SignalScope
from holdfast.models.alert_kinds.meaning import Beside, alone, explains
from holdfast.models.classes import IncidentClass

_EVERY = "intervals.gpu_s"

GPU_LOST = Kind(
    "gpu_lost",
    SignalScope.GPU,
    "A GPU or its driver is gone or unavailable: fell off the bus, needs a reset, is not enumerated, does not answer.",
    evidence="error",
    # ByteRobust (arXiv 2509.16293, section 4): an unavailable GPU is evicted without stop-time checks.
    meaning=alone(IncidentClass.MACHINE_FAULT, 1.0),
    precedence=110,
    thresholds=("intervals.stalled_s",),
    every=_EVERY,
)
XID = Kind(
    "xid",
    SignalScope.GPU,
    "The driver reported an Xid, in the kernel log or as an NVML event.",
    evidence="xid, pci, pid, process, action (of the catalogue, or the one that Xid 154 names), line",
    identified_by=("xid",),
    meaning=explains(IncidentClass.JOB_CRASH, Beside.EXIT),
    precedence=200,
    every="intervals.host_s",
    unless="`machine_fault` at once, or never, where [the catalogue](../policies/xid.yaml) says so",
)
SXID = Kind(
    "sxid",
    SignalScope.GPU,
    "The NVSwitch driver reported an SXid.",
    evidence="sxid, pci, fatal, link, line",
    identified_by=("sxid",),
    meaning=explains(IncidentClass.JOB_CRASH, Beside.EXIT),
    precedence=210,
    every="intervals.kernel_log_s",
    unless="`machine_fault` at once where it is fatal",
)
GPU_ECC_UNCORRECTABLE = Kind(
    "gpu_ecc_uncorrectable",
    SignalScope.GPU,
    "New uncorrectable memory errors.",
    meaning=alone(IncidentClass.MACHINE_FAULT),
    precedence=150,
    every=_EVERY,
)
GPU_ECC_CORRECTABLE = Kind(
    "gpu_ecc_correctable",
    SignalScope.GPU,
    "More correctable memory errors per hour than a healthy GPU has.",
    meaning=explains(IncidentClass.JOB_CRASH, Beside.EXIT),
    precedence=240,
    thresholds=("gpu.correctable_per_hour",),
    every=_EVERY,
)
GPU_ROW_REMAP_PENDING = Kind(
    "gpu_row_remap_pending",
    SignalScope.GPU,
    "A memory row waits for a reset of the GPU to be remapped.",
    meaning=explains(IncidentClass.JOB_CRASH, Beside.EXIT),
    precedence=230,
    every=_EVERY,
)
GPU_ROW_REMAP_FAILED = Kind(
    "gpu_row_remap_failed",
    SignalScope.GPU,
    "A bad memory row could not be remapped: the GPU has to be replaced.",
    meaning=alone(IncidentClass.MACHINE_FAULT, 1.0),
    precedence=140,
    every=_EVERY,
)
GPU_TEMPERATURE = Kind(
    "gpu_temperature",
    SignalScope.GPU,
    "A GPU or its memory is too hot.",
    evidence="sensor (core or memory)",
    meaning=explains(IncidentClass.FAIL_SLOW, Beside.SLOW, Beside.EXIT),
    precedence=830,
    thresholds=("gpu.shutdown_margin_c", "gpu.memory_margin_c", "gpu.misses"),
    every=_EVERY,
    at_a_look=AtALook.ALWAYS,
)
GPU_THROTTLED = Kind(
    "gpu_throttled",
    SignalScope.GPU,
    "The hardware holds a GPU's clocks down.",
    evidence="reasons (hw_slowdown, hw_thermal, hw_power_brake, sw_thermal)",
    meaning=explains(IncidentClass.FAIL_SLOW, Beside.SLOW),
    precedence=800,
    thresholds=("gpu.misses",),
    every=_EVERY,
)
GPU_PCIE_LINK = Kind(
    "gpu_pcie_link",
    SignalScope.GPU,
    "A GPU's PCIe link runs, under load, at a lower generation or width than it can.",
    evidence="generation, width, best_generation, best_width",
    meaning=explains(IncidentClass.FAIL_SLOW, Beside.SLOW),
    precedence=810,
    thresholds=("gpu.misses",),
    every=_EVERY,
    at_a_look=AtALook.ALWAYS,
)
GPU_PCIE_REPLAYS = Kind(
    "gpu_pcie_replays",
    SignalScope.GPU,
    "A GPU's PCIe link repeats packets more often than a good link does.",
    meaning=explains(IncidentClass.FAIL_SLOW, Beside.SLOW),
    precedence=820,
    thresholds=("gpu.pcie_replays_per_minute",),
    every=_EVERY,
)
NVLINK_ERROR = Kind(
    "nvlink_error",
    SignalScope.GPU,
    "An NVLink that was up is down, or counts errors.",
    evidence="link, counter (state, replay, recovery, crc_flit, crc_data)",
    meaning=explains(IncidentClass.JOB_CRASH, Beside.EXIT, Beside.HANG, Beside.SLOW),
    precedence=220,
    thresholds=("gpu.nvlink_errors_per_minute",),
    every=_EVERY,
)
GPU_SETTINGS = Kind(
    "gpu_settings",
    SignalScope.GPU,
    "Persistence mode is off, or application clocks or the power limit are not as on the machine's other GPUs.",
    evidence="setting",
    meaning=explains(IncidentClass.FAIL_SLOW, Beside.SLOW),
    precedence=840,
    thresholds=("gpu.power_limit_share", "gpu.misses"),
    every=_EVERY,
    at_a_look=AtALook.NEVER,
)
DCGM_HEALTH = Kind(
    "dcgm_health",
    SignalScope.GPU,
    "DCGM's health watches, where `dcgmi` is installed, report a failure or a warning.",
    evidence="level (fail, warn), system, code",
    meaning=alone(IncidentClass.MACHINE_FAULT),
    precedence=170,
    thresholds=("gpu.dcgm_timeout_s",),
    every=_EVERY,
    unless="a warning as `job_crash`, beside an exit",
)
DCGM_DIAG = Kind(
    "dcgm_diag",
    SignalScope.GPU,
    "A test of `dcgmi diag` failed, as monitors outside report it.",
    evidence="test, level",
    meaning=alone(IncidentClass.MACHINE_FAULT),
    precedence=160,
    unless="a warning as `job_crash`, beside an exit; a test of how the machine is set up never",
)

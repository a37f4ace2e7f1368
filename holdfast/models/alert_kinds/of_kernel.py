"""Signals in the kernel log of a host."""

from __future__ import annotations

from holdfast.models.alert_kinds.kind import Kind, SignalScope
from holdfast.models.alert_kinds.meaning import Beside, alone, explains
from holdfast.models.classes import IncidentClass

_EVERY = "intervals.kernel_log_s"

KERNEL_PANIC = Kind(
    "kernel_panic",
    SignalScope.HOST,
    "The kernel panicked, oopsed, or a processor locked up.",
    evidence="what, line",
    meaning=alone(IncidentClass.MACHINE_FAULT),
    precedence=120,
    every=_EVERY,
    unless="an oops or a lockup that the host survived as `machine_fault`, beside an exit or a hang",
)
OOM_KILL = Kind(
    "oom_kill",
    SignalScope.HOST,
    "The kernel killed a process to get memory back: its line in the log, or its count for the host or the agent's "
    "control group.",
    evidence="pid, process, cgroup (True: the job's own limit), line",
    meaning=explains(IncidentClass.HOST_PRESSURE, Beside.KILLED, confidence=0.9),
    precedence=300,
    every=_EVERY,
)
SEGFAULT = Kind(
    "segfault",
    SignalScope.HOST,
    "A process died of a segmentation fault.",
    evidence="pid, process, library (`libnccl.so.2`), line",
    meaning=explains(IncidentClass.JOB_CRASH, Beside.EXIT),
    precedence=390,
    every=_EVERY,
)
FILESYSTEM_ERROR = Kind(
    "filesystem_error",
    SignalScope.HOST,
    "A file system reports corruption, or was remounted read-only because of it.",
    evidence="filesystem, device, recovers (a block of which another copy may be good), line",
    meaning=alone(IncidentClass.STORAGE_FAULT, beside=(Beside.RAISED, Beside.HANG)),
    precedence=310,
    every=_EVERY,
)
DISK_FAULT = Kind(
    "disk_fault",
    SignalScope.HOST,
    "A disk does not read or write any more: I/O errors, controller resets, or the state folder is gone.",
    # ByteRobust (arXiv 2509.16293, section 4): a disk fault is evicted without stop-time checks.
    meaning=alone(IncidentClass.MACHINE_FAULT, 1.0),
    precedence=130,
    every=_EVERY,
)

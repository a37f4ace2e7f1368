"""Signals of a host and its storage, and of machines as a whole."""

from __future__ import annotations

from holdfast.models.alert_kinds.kind import AtALook, Kind, SignalScope
from holdfast.models.alert_kinds.meaning import NEVER, Beside, again, alone, explains
from holdfast.models.classes import IncidentClass

_EVERY = "intervals.host_s"

CPU_PRESSURE = Kind(
    "cpu_pressure",
    SignalScope.HOST,
    "Processes wait for a processor (pressure stall information), or their control group has used up its processor "
    "quota.",
    evidence="device (pressure or quota), value, limit (share of time, of the quota's periods)",
    meaning=explains(
        IncidentClass.HOST_PRESSURE,
        # Not beside a killed rank: too little processor time is slow, and kills no process.
        Beside.RAISED,
        Beside.HANG,
        Beside.SLOW,
        confidence=0.7,
    ),
    precedence=370,
    thresholds=("host.cpu_pressure_share", "host.misses"),
    every=_EVERY,
    at_a_look=AtALook.NEVER,
)
MEMORY_PRESSURE = Kind(
    "memory_pressure",
    SignalScope.HOST,
    "Memory is nearly used up, or processes stall for it.",
    evidence="value, limit",
    meaning=explains(IncidentClass.HOST_PRESSURE, Beside.KILLED, Beside.HANG),
    precedence=360,
    thresholds=("host.memory_free_share", "host.memory_pressure_share", "host.misses"),
    every=_EVERY,
    at_a_look=AtALook.ALWAYS,
)
DISK_FULL = Kind(
    "disk_full",
    SignalScope.HOST,
    "Too little space is left.",
    evidence="device, value, limit (bytes)",
    meaning=explains(IncidentClass.STORAGE_FAULT, Beside.RAISED, confidence=0.9),
    precedence=330,
    thresholds=("storage.paths", "storage.disk_free_bytes", "storage.misses"),
    every=_EVERY,
    at_a_look=AtALook.ALWAYS,
)
INODES_FULL = Kind(
    "inodes_full",
    SignalScope.HOST,
    "Too few inodes are left.",
    evidence="device, value, limit (share)",
    meaning=explains(IncidentClass.STORAGE_FAULT, Beside.RAISED, confidence=0.9),
    precedence=340,
    thresholds=("storage.paths", "storage.inodes_free_share", "storage.misses"),
    every=_EVERY,
    at_a_look=AtALook.ALWAYS,
)
MOUNT_READONLY = Kind(
    "mount_readonly",
    SignalScope.HOST,
    "A mount that has to be written is read-only.",
    evidence="device",
    meaning=alone(IncidentClass.STORAGE_FAULT, beside=(Beside.RAISED, Beside.HANG)),
    precedence=320,
    thresholds=("storage.paths",),
    every=_EVERY,
)
MOUNT_UNRESPONSIVE = Kind(
    "mount_unresponsive",
    SignalScope.HOST,
    "A mount does not answer within its time, or is stale or gone.",
    evidence="device, value, limit (seconds), recovers (a line of the kernel log)",
    meaning=again(IncidentClass.STORAGE_FAULT, Beside.RAISED, Beside.HANG),
    precedence=350,
    thresholds=("storage.paths", "storage.mount_timeout_s"),
    every=_EVERY,
    unless="a line of the kernel log never alone, as file systems recover by themselves",
    repeats=True,
)
CLOCK_SKEW = Kind(
    "clock_skew",
    SignalScope.HOST,
    "The machine's clock is off, by the time that its heartbeats carry.",
    evidence="value, limit (seconds)",
    meaning=NEVER,
    precedence=900,
    thresholds=("host.clock_skew_s",),
    accuses=False,
)
STORAGE_UNREACHABLE = Kind(
    "storage_unreachable",
    SignalScope.HOST,
    "Remote storage (S3, HDFS) does not answer.",
    evidence="endpoint, error",
    meaning=explains(IncidentClass.EXTERNAL_SERVICE, Beside.RAISED, same_machine=False),
    precedence=500,
    thresholds=("storage.s3_timeout_s", "storage.s3_misses"),
    every="intervals.storage_s",
    accuses=False,
    at_a_look=AtALook.NEVER,
)
CONTAINER_ERROR = Kind(
    "container_error",
    SignalScope.HOST,
    "The container runtime failed (image, sandbox, eviction by the kubelet), as monitors outside report it.",
    evidence="reason",
    meaning=explains(IncidentClass.JOB_CRASH, Beside.EXIT),
    precedence=380,
)
HOST_FAULT = Kind(
    "host_fault",
    SignalScope.HOST,
    "Any other check of a machine: a pattern of the [kernel log](../policies/kernel_log.yaml), a monitor outside, a "
    "plug-in. Its `check` names it.",
    evidence="check",
    meaning=NEVER,
    precedence=920,
    unless="by its check, as the lists in the policy file's section `classify` say",
)
MACHINE_LOST = Kind(
    "machine_lost",
    SignalScope.MACHINE,
    "No heartbeats of an agent, and a probe of it fails too, while others are heard.",
    evidence="missed_s, probe, silent",
    meaning=alone(IncidentClass.MACHINE_FAULT, 1.0),
    precedence=100,
)

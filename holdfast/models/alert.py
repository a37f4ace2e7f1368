"""Alerts (one signal each) and incidents (what playbooks work on)."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, TypeAdapter, model_validator

from holdfast.models.base import Frozen
from holdfast.models.names import Incarnation, IncidentId, JobName, MachineName, Rank, Version
from holdfast.models.open_enum import OpenEnum


class AlertKind(StrEnum):
    """The kind of a detector's finding. The classification policy maps kinds to incident classes.

    Evidence is named under each kind. Kinds of a machine (:data:`MACHINE_KINDS`) have these in common:
    ``device`` (``GPU 3``, ``mlx5_0/1``, ``/data``; where there is one), ``value`` and ``limit`` (numbers where
    the check has them, in the unit that ``detail`` names) and ``detail`` (one sentence for people).
    """

    # Ranks

    RANK_EXIT = "rank_exit"
    """A rank ended by itself with a failure. exit_code, signal, traceback, error_type, message, user_frame,
    cascade (only lost its peer), pattern and cause (name and cause in the registry of log patterns), log_tail,
    failed_at (when it reported the failure, Unix seconds on its machine's clock)."""
    RANK_LOG = "rank_log"
    """A line in the log of a rank that still runs. pattern, cause, cascade, line, count."""

    # GPUs

    GPU_LOST = "gpu_lost"
    """A GPU or its driver is gone or unavailable: fell off the bus, needs a reset, is not enumerated. error."""
    XID = "xid"
    """The driver reported an Xid, in the kernel log or as an NVML event. xid, pci, pid, process, action (of the
    catalogue, or the one that Xid 154 names), line."""
    SXID = "sxid"
    """The NVSwitch driver reported an SXid. sxid, pci, fatal, link, line."""
    GPU_ECC_UNCORRECTABLE = "gpu_ecc_uncorrectable"
    """New uncorrectable memory errors."""
    GPU_ECC_CORRECTABLE = "gpu_ecc_correctable"
    """More correctable memory errors per hour than a healthy GPU has."""
    GPU_ROW_REMAP_PENDING = "gpu_row_remap_pending"
    """A memory row waits for a reset of the GPU to be remapped."""
    GPU_ROW_REMAP_FAILED = "gpu_row_remap_failed"
    """A bad memory row could not be remapped: the GPU has to be replaced."""
    GPU_TEMPERATURE = "gpu_temperature"
    """A GPU or its memory is too hot. sensor (core or memory)."""
    GPU_THROTTLED = "gpu_throttled"
    """The hardware holds a GPU's clocks down. reasons (hw_slowdown, hw_thermal, hw_power_brake, sw_thermal)."""
    GPU_PCIE_LINK = "gpu_pcie_link"
    """A GPU's PCIe link runs at a lower generation or width than it can. generation, width, best_generation,
    best_width."""
    GPU_PCIE_REPLAYS = "gpu_pcie_replays"
    """A GPU's PCIe link repeats packets more often than a good link does."""
    NVLINK_ERROR = "nvlink_error"
    """An NVLink is down or counts errors. link, counter (state, replay, recovery, crc_flit, crc_data)."""
    GPU_SETTINGS = "gpu_settings"
    """Persistence mode is off, or clocks are not as on the machine's other GPUs. setting."""
    DCGM_HEALTH = "dcgm_health"
    """DCGM's health watches report a failure or a warning. level (fail, warn), system, code."""
    DCGM_DIAG = "dcgm_diag"
    """A test of ``dcgmi diag`` failed. test, level."""

    # Kernel log

    KERNEL_PANIC = "kernel_panic"
    """The kernel panicked, oopsed, or a processor locked up. what, line."""
    OOM_KILL = "oom_kill"
    """The kernel killed a process to get memory back. pid, process, cgroup (True: the job's own limit), line."""
    SEGFAULT = "segfault"
    """A process died of a segmentation fault. pid, process, library (``libnccl.so.2``), line."""
    FILESYSTEM_ERROR = "filesystem_error"
    """A file system reports corruption, or was remounted read-only because of it. filesystem, device, line."""
    DISK_FAULT = "disk_fault"
    """A disk does not read or write any more: I/O errors, controller resets, or the state folder is gone."""

    # Network

    NIC_DOWN = "nic_down"
    """An InfiniBand or Ethernet port that was up is down. device, state."""
    NIC_FLAPPING = "nic_flapping"
    """A port went down and came back. device, value (changes in the window)."""
    NIC_ERRORS = "nic_errors"
    """A port's error counters grow: symbol errors, link recoveries, CRC errors. device, counter."""
    PACKET_LOSS = "packet_loss"
    """A port drops packets. device, value and limit (share of its packets)."""
    SWITCH_DOWN = "switch_down"
    """Several machines under one switch lost the network at once. switch, machines. Names no machine."""

    # Host and storage

    CPU_PRESSURE = "cpu_pressure"
    """Processes wait for a processor (pressure stall information). value, limit (share of time)."""
    MEMORY_PRESSURE = "memory_pressure"
    """Memory is nearly used up, or processes stall for it. value, limit."""
    DISK_FULL = "disk_full"
    """Too little space is left. device, value, limit (bytes)."""
    INODES_FULL = "inodes_full"
    """Too few inodes are left. device, value, limit (share)."""
    MOUNT_READONLY = "mount_readonly"
    """A mount that has to be written is read-only. device."""
    MOUNT_UNRESPONSIVE = "mount_unresponsive"
    """A mount does not answer within its time, or is stale or gone. device, value, limit (seconds)."""
    CLOCK_SKEW = "clock_skew"
    """The machine's clock is off. value, limit (seconds)."""
    STORAGE_UNREACHABLE = "storage_unreachable"
    """Remote storage (S3, HDFS) does not answer. endpoint, error."""
    HOST_FAULT = "host_fault"
    """Any other check of a machine, as monitors outside report them. check."""

    # The job as a whole

    MACHINE_LOST = "machine_lost"
    """An agent is unreachable. missed_s, probe."""
    HANG = "hang"
    """No progress. signals, silent_s, window_s, ranks."""
    NON_FINITE = "non_finite"
    """Loss or gradient norm is NaN or infinite. step, metric, value."""
    REPLICA_DIFFERS = "replica_differs"
    """Weights or optimizer state of data-parallel ranks, which must be the same bit for bit, are not. step, ranks (odd
    ones), paths, last_good_step (at which they were the same), detail. Names a machine when a majority is right."""
    METRIC_JUMP = "metric_jump"
    """Loss or gradient norm jumped to a multiple of its median. step, metric, value, median, factor."""
    THROUGHPUT_DECLINE = "throughput_decline"
    """Steps take lastingly longer than the job's own median. value, limit, median (seconds), ranks (slowest)."""
    MFU_DECLINE = "mfu_decline"
    """Model FLOPs utilisation is lastingly lower than the job's own median. value, limit, median (share)."""
    STRAGGLER = "straggler"
    """A rank is lastingly slower than its peers in one phase. phase, value, median (seconds), factor, rounds."""

    UNRESTORABLE = "unrestorable"
    """A rehearsal of a restore failed while the job runs. step, tier, problems (path in the state, what is wrong),
    detail."""

    # From outside

    CONTAINER_ERROR = "container_error"
    """The container runtime failed (image, sandbox, eviction by the kubelet). reason."""
    EXTERNAL_SERVICE = "external_service"
    """A service that the job needs does not answer: tracker, licence server, data service. service, error."""
    MANUAL = "manual"
    """Raised by a person. by, text, class."""
    CODE_UPDATE = "code_update"
    """An engineer ships a change. version, when (now | lazy), text, by."""


GPU_KINDS = frozenset(kind for kind in AlertKind if kind.startswith("gpu_")) | {
    AlertKind.XID,
    AlertKind.SXID,
    AlertKind.NVLINK_ERROR,
    AlertKind.DCGM_HEALTH,
    AlertKind.DCGM_DIAG,
}
NETWORK_KINDS = frozenset(
    {AlertKind.NIC_DOWN, AlertKind.NIC_FLAPPING, AlertKind.NIC_ERRORS, AlertKind.PACKET_LOSS}
)
"""These come and go by themselves, so their repetition is evidence: the same one twice is two signals."""
HOST_KINDS = frozenset(
    {
        AlertKind.KERNEL_PANIC,
        AlertKind.OOM_KILL,
        AlertKind.SEGFAULT,
        AlertKind.FILESYSTEM_ERROR,
        AlertKind.DISK_FAULT,
        AlertKind.CPU_PRESSURE,
        AlertKind.MEMORY_PRESSURE,
        AlertKind.DISK_FULL,
        AlertKind.INODES_FULL,
        AlertKind.MOUNT_READONLY,
        AlertKind.MOUNT_UNRESPONSIVE,
        AlertKind.CLOCK_SKEW,
        AlertKind.STORAGE_UNREACHABLE,
        AlertKind.CONTAINER_ERROR,
        AlertKind.HOST_FAULT,
    }
)
MACHINE_KINDS = GPU_KINDS | NETWORK_KINDS | HOST_KINDS | {AlertKind.MACHINE_LOST}
"""Signals of a machine: true for as long as this incarnation of it serves the job, in any epoch."""


_VERSION = TypeAdapter(Version)


class Alert(Frozen):
    """One signal from a detector or from outside."""

    kind: AlertKind
    job: JobName | None = None
    machine: MachineName | None = None
    rank: Rank | None = None
    epoch: int | None = None
    incarnation: Incarnation | None = None
    at: float
    """When the detector saw it, seconds since the Unix epoch, on the detector's clock."""
    firing: bool = True
    fingerprint: str = ""
    """Same fault, same fingerprint: what duplicates are recognised by. Empty: derived from the fields."""
    evidence: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _an_update_names_a_version(self) -> Alert:
        if self.kind is AlertKind.CODE_UPDATE and "version" in self.evidence:
            _VERSION.validate_python(self.evidence["version"])
        return self

    @property
    def key(self) -> str:
        """The fingerprint, or one made of what identifies the signal.

        One machine may show several Xids or failed checks at once, on several devices; and a network fault that
        comes again is more than one that came once (such alerts differ by their time).
        """
        if self.fingerprint:
            return self.fingerprint
        parts = [self.kind, self.job, self.epoch, self.machine, self.incarnation, self.rank]
        if self.kind in MACHINE_KINDS or self.kind is AlertKind.CODE_UPDATE:
            parts += [self.evidence.get(name) for name in IDENTIFYING if name in self.evidence]
        if self.kind in NETWORK_KINDS:
            parts.append(f"{self.at:.3f}")
        return ":".join(map(str, parts))[:300]


IDENTIFYING = ("xid", "sxid", "check", "device", "link", "version")
"""Evidence that distinguishes two signals of one kind on one machine."""


class IncidentClass(OpenEnum):
    """One playbook each, in ``flows/`` under the same name; other packages declare more (:mod:`holdfast.plugins`)."""

    JOB_CRASH = "job_crash"
    MACHINE_FAULT = "machine_fault"
    JOB_HANG = "job_hang"
    NAN_LOSS = "nan_loss"
    USER_CODE_ERROR = "user_code_error"
    CODE_UPDATE = "code_update"
    NETWORK_FAULT = "network_fault"
    STORAGE_FAULT = "storage_fault"
    HOST_PRESSURE = "host_pressure"
    FAIL_SLOW = "fail_slow"
    SILENT_CORRUPTION = "silent_corruption"
    EXTERNAL_SERVICE = "external_service"
    CHECKPOINT_UNRESTORABLE = "checkpoint_unrestorable"


BESIDE_TRAINING = frozenset({IncidentClass.CHECKPOINT_UNRESTORABLE})
"""Incidents of a job that runs on: their playbooks never stop it, and yield to any other incident of it."""


def _recorded(value: Any) -> Any:
    return IncidentClass.declare(value) if isinstance(value, str) else value


RecordedClass = Annotated[IncidentClass, BeforeValidator(_recorded)]
"""The class of something that happened: readable also where the package that brought it is not installed."""


class IncidentState(StrEnum):
    """Life of an incident."""

    OPEN = "open"
    RECOVERED = "recovered"
    NEEDS_HUMAN = "needs_human"
    DISMISSED = "dismissed"
    STOPPED = "stopped"
    """The playbook decided to stop the job for good; the summary has the reason."""


class Classification(Frozen):
    """Answer of the classification policy."""

    incident_class: RecordedClass
    confidence: float = Field(ge=0, le=1)
    machine: MachineName | None = None
    """The machine of the root alert, or None when the alerts name no machine."""
    rank: Rank | None = None
    reasons: tuple[str, ...]
    root: str = ""
    """Key of the alert that the others follow from; empty: none stands out."""
    suspects: tuple[MachineName, ...] = ()
    """Machines that the alerts accuse, surely or not."""


class Incident(Frozen):
    """The unit that a playbook works on: one or more alerts of one job, correlated, with a class."""

    id: IncidentId
    job: JobName
    incident_class: RecordedClass
    state: IncidentState
    epoch: int
    """The job's epoch that the fault hit."""
    attempt: int = 1
    """Grows when the reconciler starts another run for this incident; fences older attempts."""
    machine: MachineName | None = None
    rank: Rank | None = None
    confidence: float = 0.5
    reasons: tuple[str, ...] = ()
    alerts: tuple[Alert, ...] = ()
    injected_at: float | None = None
    detected_at: float
    """When the first alert was accepted by the gateway."""
    opened_at: float
    first_task_at: float | None = None
    recovered_at: float | None = None
    """Time of the first new step after it (beyond every step done before)."""
    closed_at: float | None = None
    flow_run_id: str | None = None
    last_good_step: int | None = None
    """Newest step that may be restored (NaN, corruption); None: no bound."""
    summary: str = ""


class Finding(Frozen):
    """One result of one check on one machine (or pair of machines)."""

    check: str
    machine: MachineName
    ok: bool
    rank: Rank | None = None
    peer: MachineName | None = None
    """The other machine of a pair test."""
    detail: str = ""
    sure: bool = False
    """A failing check that by itself proves a machine fault (no other explanation)."""
    seconds: float = 0.0
    value: float | None = None
    """The measured value, to be compared with those of the other machines."""
    unit: str = ""
    """Of the value; a rate ends in ``/s``: more is better. Empty: a cost."""
    repeats: int = 0
    """Measurements that the value is the best of; 0: the check does not report it."""
    busy: float = 0.0
    """Share of the host's processors that others used meanwhile, where these made the value."""
    usual: float | None = None
    """Median of what this machine measured before ..."""
    usual_of: int = 0
    """... so often."""
    digest: str = ""
    """Of the bytes that came out, where machines are compared bit for bit."""
    kind: str = ""
    """Hardware and software that the value or digest is of: only equals are compared."""


class Blame(StrEnum):
    """The target of a verdict's blame."""

    NOBODY = "nobody"
    MACHINES = "machines"
    CODE = "code"
    """Code or data: every machine shows the fault."""


class Verdict(Frozen):
    """The result of a diagnosis."""

    suspects: tuple[MachineName, ...] = ()
    confidence: float = 0.0
    evidence: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()
    blame: Blame = Blame.NOBODY
    """``machines`` whenever there are suspects."""
    ranks: tuple[Rank, ...] = ()
    """Ranks that the suspects are named for; empty: not for certain ranks."""
    sure: bool = False
    """Only the suspects explain it: they are evicted at once."""

    @model_validator(mode="before")
    @classmethod
    def _suspects_are_blamed(cls, fields: Any) -> Any:
        if isinstance(fields, dict) and fields.get("suspects"):
            return {**fields, "blame": Blame.MACHINES}
        return fields

    @property
    def named(self) -> str:
        """The suspects in words, or a note that there is none."""
        return ", ".join(self.suspects) or "no suspect:"


class Rung(StrEnum):
    """The rungs that a ladder may have. The policy file defines which class has which, in which order."""

    RETRY = "retry"
    """Restart in place."""
    EVICT = "evict"
    """Evict the machines that the alerts accuse, although no check proves it."""
    OLDER_STATE = "older_state"
    """Leave behind a saved state that led to the same failure again, and take an older one."""
    SKIP_DATA = "skip_data"
    """Restart in place, and skip the data at which the job failed again and again."""
    ROLLBACK = "rollback"
    REPLAY = "replay"
    HUMAN = "human"
    STOP = "stop"
    """Stop the job for good and free its machines."""

"""Meaning of each kind of alert: the table that drives the classification.

One row per kind. :class:`Acts` defines when a kind opens an incident: some prove their fault alone, some only when they
come again, most only explain why ranks ended or wait. Sources: BR (arXiv 2509.16293, section 4): GPU unavailable and
disk fault are evicted without stop-time checks; network alerts at the second within five minutes; NaN and a jump
of 5x are fault signals.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import StrEnum

from holdfast.models.alert import Alert, AlertKind, IncidentClass
from holdfast.models.base import Frozen
from holdfast.policies.classify import dcgm, xid
from holdfast.policies.config.policy import ClassifyPolicy


class Acts(StrEnum):
    """When a signal opens an incident."""

    ALONE = "alone"
    """At once."""
    AGAIN = "again"
    """At the second on one machine within the policy's window; the first is noted."""
    BESIDE = "beside"
    """Only with ranks that ended or hang, or a pace that dropped: it explains them."""
    NEVER = "never"
    """Evidence for people."""


class Beside(StrEnum):
    """Failures that a signal that acts :attr:`Acts.BESIDE` others explains."""

    EXIT = "exit"
    """The exit of a rank, however it ended."""
    KILLED = "killed"
    """A rank that was killed by SIGKILL."""
    RAISED = "raised"
    """A rank that raised an exception that is no error of programming."""
    HANG = "hang"
    SLOW = "slow"


class Meaning(Frozen):
    """One row: the meaning of a kind."""

    means: IncidentClass
    acts: Acts
    confidence: float = 0.9
    beside: frozenset[Beside] = frozenset()
    same_machine: bool = True
    """It explains only what happened on its own machine (a service or a switch explains all of them)."""


def _alone(means: IncidentClass, confidence: float = 0.9, beside: Collection[Beside] = ()) -> Meaning:
    return Meaning(means=means, acts=Acts.ALONE, confidence=confidence, beside=frozenset(beside))


def _again(means: IncidentClass, *beside: Beside) -> Meaning:
    return Meaning(means=means, acts=Acts.AGAIN, confidence=0.8, beside=frozenset(beside))


def _beside(
    means: IncidentClass, *beside: Beside, confidence: float = 0.8, same_machine: bool = True
) -> Meaning:
    return Meaning(
        means=means,
        acts=Acts.BESIDE,
        confidence=confidence,
        beside=frozenset(beside),
        same_machine=same_machine,
    )


_NEVER = Meaning(means=IncidentClass.JOB_CRASH, acts=Acts.NEVER, confidence=0.0)
_CRASH, _MACHINE, _NETWORK = (
    IncidentClass.JOB_CRASH,
    IncidentClass.MACHINE_FAULT,
    IncidentClass.NETWORK_FAULT,
)
_STORAGE, _PRESSURE, _SLOW = (
    IncidentClass.STORAGE_FAULT,
    IncidentClass.HOST_PRESSURE,
    IncidentClass.FAIL_SLOW,
)
_SERVICE = IncidentClass.EXTERNAL_SERVICE
_EXIT, _KILLED, _RAISED, _HANG, _PACE = Beside.EXIT, Beside.KILLED, Beside.RAISED, Beside.HANG, Beside.SLOW

# In order of precedence among signals that explain the same thing: the more certain, the more to the top.
TABLE: Mapping[AlertKind, Meaning] = {
    # A machine that is surely broken
    AlertKind.MACHINE_LOST: _alone(_MACHINE, 1.0),
    AlertKind.GPU_LOST: _alone(_MACHINE, 1.0),
    AlertKind.KERNEL_PANIC: _alone(_MACHINE),
    AlertKind.DISK_FAULT: _alone(_MACHINE, 1.0),
    AlertKind.GPU_ROW_REMAP_FAILED: _alone(_MACHINE, 1.0),
    AlertKind.GPU_ECC_UNCORRECTABLE: _alone(_MACHINE),
    AlertKind.DCGM_DIAG: _alone(_MACHINE),
    AlertKind.DCGM_HEALTH: _alone(_MACHINE),
    # A GPU that may be
    AlertKind.XID: _beside(_CRASH, _EXIT),
    AlertKind.SXID: _beside(_CRASH, _EXIT),
    AlertKind.NVLINK_ERROR: _beside(_CRASH, _EXIT, _HANG, _PACE),
    AlertKind.GPU_ROW_REMAP_PENDING: _beside(_CRASH, _EXIT),
    AlertKind.GPU_ECC_CORRECTABLE: _beside(_CRASH, _EXIT),
    # Memory, processors, disks
    AlertKind.OOM_KILL: _beside(_PRESSURE, _KILLED, confidence=0.9),
    AlertKind.FILESYSTEM_ERROR: _alone(_STORAGE, beside=(_RAISED, _HANG)),
    AlertKind.MOUNT_READONLY: _alone(_STORAGE, beside=(_RAISED, _HANG)),
    AlertKind.DISK_FULL: _beside(_STORAGE, _RAISED, confidence=0.9),
    AlertKind.INODES_FULL: _beside(_STORAGE, _RAISED, confidence=0.9),
    AlertKind.MOUNT_UNRESPONSIVE: _again(_STORAGE, _RAISED, _HANG),
    AlertKind.MEMORY_PRESSURE: _beside(_PRESSURE, _KILLED, _HANG),
    AlertKind.CPU_PRESSURE: _beside(_PRESSURE, _KILLED, _RAISED, _HANG, _PACE, confidence=0.7),
    AlertKind.CONTAINER_ERROR: _beside(_CRASH, _EXIT),
    AlertKind.SEGFAULT: _beside(_CRASH, _EXIT),
    # Network
    AlertKind.SWITCH_DOWN: Meaning(
        means=_NETWORK,
        acts=Acts.ALONE,
        beside=frozenset({_RAISED, _HANG}),
        same_machine=False,
    ),
    AlertKind.NIC_DOWN: _again(_NETWORK, _RAISED, _HANG),
    AlertKind.NIC_FLAPPING: _again(_NETWORK, _RAISED, _HANG),
    AlertKind.PACKET_LOSS: _again(_NETWORK, _RAISED, _HANG, _PACE),
    AlertKind.NIC_ERRORS: _beside(_NETWORK, _HANG, _PACE, confidence=0.7),
    # Outside
    AlertKind.STORAGE_UNREACHABLE: _beside(_SERVICE, _RAISED, same_machine=False),
    AlertKind.EXTERNAL_SERVICE: _beside(_SERVICE, _RAISED, same_machine=False),
    # The job's numbers and its pace
    AlertKind.NON_FINITE: _alone(IncidentClass.NAN_LOSS, 1.0),
    AlertKind.REPLICA_DIFFERS: _alone(IncidentClass.SILENT_CORRUPTION, 0.95),
    AlertKind.METRIC_JUMP: _alone(IncidentClass.SILENT_CORRUPTION, 0.6),
    AlertKind.HANG: _alone(IncidentClass.JOB_HANG),
    AlertKind.THROUGHPUT_DECLINE: _alone(_SLOW, 0.8),
    AlertKind.MFU_DECLINE: _alone(_SLOW, 0.8),
    AlertKind.STRAGGLER: _alone(_SLOW, 0.7),
    # What would be lost with the next fault; any other comes first
    AlertKind.UNRESTORABLE: _alone(IncidentClass.CHECKPOINT_UNRESTORABLE, 0.95),
    # Explains a pace that dropped
    AlertKind.GPU_THROTTLED: _beside(_SLOW, _PACE),
    AlertKind.GPU_PCIE_LINK: _beside(_SLOW, _PACE),
    AlertKind.GPU_PCIE_REPLAYS: _beside(_SLOW, _PACE),
    AlertKind.GPU_TEMPERATURE: _beside(_SLOW, _PACE, _EXIT),
    AlertKind.GPU_SETTINGS: _beside(_SLOW, _PACE),
    AlertKind.CLOCK_SKEW: _NEVER,
    AlertKind.RANK_LOG: _NEVER,
    AlertKind.HOST_FAULT: _NEVER,  # its check reports the meaning: see meaning()
    # Judged by rules of their own: exits are separated into root and echo, people name what they want
    AlertKind.RANK_EXIT: _NEVER,
    AlertKind.MANUAL: _NEVER,
    AlertKind.CODE_UPDATE: _NEVER,
}

PRECEDENCE = tuple(TABLE)

CAUSES: Mapping[str, IncidentClass] = {
    "host_memory": _PRESSURE,
    "cpu": _PRESSURE,
    "disk_space": _STORAGE,
    "filesystem": _STORAGE,
    "storage": _SERVICE,
    "remote_storage": _SERVICE,
    "service": _SERVICE,
    "network": _NETWORK,
    "numeric": IncidentClass.NAN_LOSS,
}
"""Class by the cause that a rank's last log lines name (from the registry of log patterns); others: a crash."""


def meaning(alert: Alert, policy: ClassifyPolicy) -> Meaning:  # noqa: PLR0911  (a table)
    """Return the row of one alert, with the changes from its evidence."""
    evidence, row = alert.evidence, TABLE[alert.kind]
    if harmless(alert):
        return _NEVER
    match alert.kind:
        case AlertKind.XID if _of_xid(alert).lost:
            return _alone(_MACHINE, 1.0)
        case AlertKind.SXID if evidence.get("fatal") is True:
            return _alone(_MACHINE, 0.95)
        case AlertKind.DCGM_HEALTH | AlertKind.DCGM_DIAG if evidence.get("level") == "warn":
            return _beside(_CRASH, _EXIT)
        case AlertKind.KERNEL_PANIC if evidence.get("what") not in (None, "", "panic"):
            # An oops or a lockup that the host survived.
            return _beside(_MACHINE, _EXIT, _HANG)
        case AlertKind.HOST_FAULT if evidence.get("check") in policy.sure_host_checks:
            return _alone(_MACHINE, 1.0)
        case AlertKind.HOST_FAULT if evidence.get("check") in policy.broken_host_checks:
            return _beside(_MACHINE, _EXIT, _HANG)
        case AlertKind.HOST_FAULT if evidence.get("check") in policy.pressed_host_checks:
            return _beside(_PRESSURE, _RAISED, _HANG)
        case AlertKind.HOST_FAULT if evidence.get("check") in policy.network_checks:
            return TABLE[AlertKind.NIC_DOWN]
    return row


def harmless(alert: Alert) -> bool:
    """Return whether it asks for no action, so that it explains no failure and accuses no machine."""
    evidence = alert.evidence
    if alert.kind is AlertKind.XID:
        return _of_xid(alert).action is xid.XidAction.IGNORE
    if alert.kind is AlertKind.DCGM_DIAG and evidence.get("test"):
        return not dcgm.of_hardware(str(evidence["test"]), str(evidence.get("detail", "")))
    return evidence.get("harmless") is True


def _of_xid(alert: Alert) -> xid.XidEntry:
    return xid.resolved(number(alert.evidence.get("xid")), str(alert.evidence.get("line", "")))


def number(value: object) -> int:
    """Return a code that arrived as a number or as digits; 0 when it is none."""
    text = str(value)
    return int(text) if text.isdecimal() and len(text) < 10 else 0

"""Meaning of each alert: the row of its kind, and the changes from its evidence."""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.models.alert import Alert, AlertKind, IncidentClass
from holdfast.models.alert_kinds.meaning import NEVER, Beside, Meaning, alone, explains
from holdfast.policies.classify import dcgm, xid
from holdfast.policies.config.policy import ClassifyPolicy

CAUSES: Mapping[str, IncidentClass] = {
    "host_memory": IncidentClass.HOST_PRESSURE,
    "cpu": IncidentClass.HOST_PRESSURE,
    "disk_space": IncidentClass.STORAGE_FAULT,
    "filesystem": IncidentClass.STORAGE_FAULT,
    "storage": IncidentClass.EXTERNAL_SERVICE,
    "remote_storage": IncidentClass.EXTERNAL_SERVICE,
    "service": IncidentClass.EXTERNAL_SERVICE,
    "network": IncidentClass.NETWORK_FAULT,
    "numeric": IncidentClass.NAN_LOSS,
}
"""Class by the cause that a rank's last log lines name (from the registry of log patterns); others: a crash."""


def meaning(alert: Alert, policy: ClassifyPolicy) -> Meaning:  # noqa: PLR0911  (a table)
    """Return the row of one alert, with the changes from its evidence."""
    evidence, row = alert.evidence, alert.kind.row.meaning
    if harmless(alert):
        return NEVER
    match alert.kind:
        case AlertKind.XID if _of_xid(alert).lost:
            return alone(IncidentClass.MACHINE_FAULT, 1.0)
        case AlertKind.SXID if evidence.get("fatal") is True:
            return alone(IncidentClass.MACHINE_FAULT, 0.95)
        case AlertKind.CPU_PRESSURE if evidence.get("device") == "quota":
            # A job that is slow against its machine's quota gets another machine: a retry in place is as slow.
            return explains(IncidentClass.HOST_PRESSURE, Beside.RAISED, Beside.HANG, confidence=0.7)
        case AlertKind.DCGM_HEALTH | AlertKind.DCGM_DIAG if evidence.get("level") == "warn":
            return explains(IncidentClass.JOB_CRASH, Beside.EXIT)
        case AlertKind.MOUNT_UNRESPONSIVE | AlertKind.FILESYSTEM_ERROR if evidence.get("recovers") is True:
            # A line of the kernel log: servers that take turns, one after the other, are no mount that is gone; a bad
            # block of which another copy may be good is no broken file system.
            return explains(IncidentClass.STORAGE_FAULT, Beside.RAISED, Beside.HANG)
        case AlertKind.KERNEL_PANIC if evidence.get("what") not in (None, "", "panic"):
            # An oops or a lockup that the host survived.
            return explains(IncidentClass.MACHINE_FAULT, Beside.EXIT, Beside.HANG)
        case AlertKind.HOST_FAULT if evidence.get("check") in policy.sure_host_checks:
            return alone(IncidentClass.MACHINE_FAULT, 1.0)
        case AlertKind.HOST_FAULT if evidence.get("check") in policy.broken_host_checks:
            return explains(IncidentClass.MACHINE_FAULT, Beside.EXIT, Beside.HANG)
        case AlertKind.HOST_FAULT if evidence.get("check") in policy.pressed_host_checks:
            return explains(IncidentClass.HOST_PRESSURE, Beside.RAISED, Beside.HANG)
        case AlertKind.HOST_FAULT if evidence.get("check") in policy.network_checks:
            if evidence.get("recovers") is True:
                return explains(IncidentClass.NETWORK_FAULT, Beside.RAISED, Beside.HANG)
            return AlertKind.NIC_DOWN.row.meaning
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

"""Signs that prove a machine fault by themselves: no diagnosis needed, evict at once (BR section 4)."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.models.alert import Alert, AlertKind
from holdfast.policies import xid
from holdfast.policies.policy import ClassifyPolicy


def find(alerts: Sequence[Alert], policy: ClassifyPolicy) -> dict[str, str]:
    """Machines with a sure sign -> what it was; in the order of ``alerts``."""
    found: dict[str, str] = {}
    for alert in alerts:
        if alert.machine is not None and alert.machine not in found and _is_sure(alert, alerts, policy):
            found[alert.machine] = describe(alert)
    return found


def describe(alert: Alert) -> str:
    """One line for people."""
    evidence = alert.evidence
    if alert.kind is AlertKind.XID:
        entry = xid.lookup(code_of(alert))
        return f"Xid {entry.code}, {entry.name} ({entry.action.value})"
    if alert.kind is AlertKind.MACHINE_LOST:
        return f"its agent is gone ({evidence.get('probe') or evidence.get('missed') or 'no heartbeat'})"
    if alert.kind is AlertKind.GPU_LOST:
        return f"a GPU is lost ({evidence.get('error') or evidence.get('nvml') or 'reported by the driver'})"
    return (
        f"{evidence.get('check', alert.kind.value)} = {evidence.get('value')} (limit {evidence.get('limit')})"
    )


def code_of(alert: Alert) -> int:
    """The Xid of an alert; 0 when it carries none that is a number."""
    value = str(alert.evidence.get("xid", ""))
    return int(value) if value.isdecimal() else 0


def _is_sure(alert: Alert, alerts: Sequence[Alert], policy: ClassifyPolicy) -> bool:
    if alert.kind in (AlertKind.MACHINE_LOST, AlertKind.GPU_LOST):
        return True
    if alert.kind is AlertKind.XID:
        return xid.lookup(code_of(alert)).lost
    if alert.kind is not AlertKind.HOST_FAULT:
        return False
    check = alert.evidence.get("check")
    return check in policy.sure_host_checks or (
        check in policy.network_checks and _again(alert, alerts, policy)
    )


def _again(alert: Alert, alerts: Sequence[Alert], policy: ClassifyPolicy) -> bool:
    """The same network check failed on the same machine twice within the window (BR section 4)."""
    return any(
        other is not alert
        and other.kind is alert.kind
        and other.machine == alert.machine
        and other.evidence.get("check") == alert.evidence.get("check")
        and abs(other.at - alert.at) <= policy.network_window_s
        for other in alerts
    )

"""Signs that prove a machine fault by themselves: no diagnosis needed, evict at once (ByteRobust section 4)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from holdfast.models.alert import Alert, AlertKind, IncidentClass
from holdfast.models.alert_kinds.meaning import Acts
from holdfast.policies.classify import xid
from holdfast.policies.classify.meaning import meaning, number
from holdfast.policies.config.policy import ClassifyPolicy


def find(alerts: Sequence[Alert], policy: ClassifyPolicy) -> dict[str, str]:
    """Return the machines with a sure sign and its description; in the order of ``alerts``."""
    found: dict[str, str] = {}
    for alert in alerts:
        if alert.machine is not None and alert.machine not in found and is_sure(alert, policy):
            found[alert.machine] = describe(alert)
    return found


def of_present(alerts: Iterable[Alert], present: Mapping[str, str]) -> list[Alert]:
    """Return the alerts about machines in their ``present`` life (name -> incarnation), or about no particular one."""
    return [
        alert
        for alert in alerts
        if (life := present.get(alert.machine or "")) is not None and alert.incarnation in (None, life)
    ]


def is_sure(alert: Alert, policy: ClassifyPolicy) -> bool:
    """Return whether the alert alone proves that its machine is broken."""
    row = meaning(alert, policy)
    return row.acts is Acts.ALONE and row.means is IncidentClass.MACHINE_FAULT


def ends(alert: Alert, policy: ClassifyPolicy) -> bool:
    """Return whether a resolved alert shows that its fault is over.

    A rule of Prometheus also ends when its window has passed (``changes(...[5m])``) or its target is gone: that proves
    nothing about a machine that a sure sign proved broken.
    """
    return alert.evidence.get("source") != "alertmanager" or not is_sure(alert, policy)


def describe(alert: Alert) -> str:
    """Describe the alert in one line for people."""
    evidence = alert.evidence
    if alert.kind is AlertKind.XID:
        entry = xid.resolved(code_of(alert), str(alert.evidence.get("line", "")))
        return f"Xid {entry.code}, {entry.name} ({entry.action.value})"
    if alert.kind is AlertKind.MACHINE_LOST:
        return f"its agent is gone ({evidence.get('probe') or evidence.get('missed') or 'no heartbeat'})"
    if alert.kind is AlertKind.GPU_LOST:
        return f"a GPU is lost ({evidence.get('error') or evidence.get('nvml') or 'reported by the driver'})"
    what = str(evidence.get("check") or alert.kind.value.replace("_", " "))
    if evidence.get("device"):
        what += f" on {evidence['device']}"
    if evidence.get("detail"):
        return f"{what}: {str(evidence['detail'])[:200]}"
    if evidence.get("metric"):
        what += f" of {evidence['metric']}"
    if "value" not in evidence:
        return what
    bounds = ", ".join(f"{name} {_short(evidence[name])}" for name in ("limit", "median") if name in evidence)
    return f"{what} = {_short(evidence['value'])}" + (f" ({bounds})" if bounds else "")


def _short(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def code_of(alert: Alert) -> int:
    """Return the Xid of an alert; 0 when it carries none that is a number."""
    return number(alert.evidence.get("xid", ""))

"""What makes two alerts the same signal. Pure."""

from __future__ import annotations

from holdfast.models.alert import Alert, AlertKind
from holdfast.policies.policy import ClassifyPolicy

_SEVERAL_AT_ONCE = frozenset({AlertKind.XID, AlertKind.HOST_FAULT, AlertKind.CODE_UPDATE})


def identified(alert: Alert, policy: ClassifyPolicy) -> Alert:
    """The alert with a fingerprint, where the fields that make its key do not tell two signals apart.

    One machine may show several Xids or failed checks; and a network check that fails again is more than one
    that failed once (such alerts differ by their time).
    """
    if alert.fingerprint or alert.kind not in _SEVERAL_AT_ONCE:
        return alert
    check = alert.evidence.get("check")
    parts = [alert.key, *(str(alert.evidence.get(name, "")) for name in ("xid", "check", "version"))]
    if check in policy.network_checks:
        parts.append(f"{alert.at:.3f}")
    return alert.model_copy(update={"fingerprint": ":".join(parts)[:300]})

"""Signals that count when repeated: a network fault at the second within five minutes (ByteRobust section 4)."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.models.alert import Alert
from holdfast.models.alert_kinds.meaning import Acts
from holdfast.policies.classify.meaning import meaning
from holdfast.policies.config.policy import ClassifyPolicy


def find(alerts: Sequence[Alert], policy: ClassifyPolicy) -> list[Alert]:
    """Return for each machine the first alert that came again within the window; in the order of ``alerts``."""
    seen: dict[str, Alert] = {}
    for alert in alerts:
        if alert.machine is not None and alert.machine not in seen and _came_again(alert, alerts, policy):
            seen[alert.machine] = alert
    return list(seen.values())


def _came_again(alert: Alert, alerts: Sequence[Alert], policy: ClassifyPolicy) -> bool:
    if meaning(alert, policy).acts is not Acts.AGAIN:
        return False
    return any(
        other is not alert
        and (other.kind, other.machine) == (alert.kind, alert.machine)
        and other.evidence.get("check") == alert.evidence.get("check")
        and abs(other.at - alert.at) <= policy.network_window_s
        for other in alerts
    )

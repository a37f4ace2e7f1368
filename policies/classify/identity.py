"""Identity of alerts: which reports are of one signal, and an order that does not depend on their arrival."""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.models.alert import Alert
from holdfast.policies.config.policy import ClassifyPolicy


def identity(alert: Alert, policy: ClassifyPolicy) -> str:
    """Return a key that two reports of one signal share; a monitor's network check counts each time it fails."""
    if not alert.fingerprint and alert.evidence.get("check") in policy.network_checks:
        return f"{alert.key}:{alert.at:.3f}"[:300]
    return alert.key


def in_order(alerts: Iterable[Alert], policy: ClassifyPolicy) -> tuple[Alert, ...]:
    """Return the first report of each signal, by time, key and content."""
    kept: dict[str, Alert] = {}
    for alert in sorted(alerts, key=lambda item: (item.at, item.key, item.model_dump_json())):
        kept.setdefault(identity(alert, policy), alert)
    return tuple(kept.values())

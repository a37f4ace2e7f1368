"""Signals that count when repeated: a network fault at the second within five minutes (ByteRobust section 4)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from holdfast.models.alert import Alert
from holdfast.models.alert_kinds.meaning import Acts
from holdfast.policies.classify.meaning import meaning
from holdfast.policies.config.policy import ClassifyPolicy

_ONE_EVENT_S = 5.0
_OF_REPLICAS = frozenset({"replica", "prometheus_replica", "thanos_ruler_replica", "prometheus"})
"""Labels that name the server, where two Prometheus servers watch the same machines."""


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
        and not _of_one_event(alert, other)
        and not _of_a_pair(alert, other)
        for other in alerts
    )


def _of_one_event(one: Alert, other: Alert) -> bool:
    """Return whether two ports of a machine were hit at one time: the two of a card whose firmware stopped."""
    first, second = one.evidence.get("device"), other.evidence.get("device")
    return bool(first and second) and first != second and abs(one.at - other.at) < _ONE_EVENT_S


def _of_a_pair(one: Alert, other: Alert) -> bool:
    """Return whether two Prometheus servers report one event: their alerts differ in the server's label alone."""
    first, second = one.evidence.get("labels"), other.evidence.get("labels")
    if not isinstance(first, Mapping) or not isinstance(second, Mapping) or first == second:
        return False
    return _without_server(first) == _without_server(second)


def _without_server(labels: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in labels.items() if name not in _OF_REPLICAS}

"""The last good step: from alerts that name the first bad one, or the last at which all was well."""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.models.alert import Alert, AlertKind


def told(alerts: Iterable[Alert]) -> int | None:
    """Return the earliest step that the alerts leave; None: they name none."""
    bounds = [bound for alert in alerts if (bound := _of(alert)) is not None]
    return min(bounds, default=None)


def _of(alert: Alert) -> int | None:
    if alert.kind is AlertKind.NON_FINITE and "step" in alert.evidence:
        return int(alert.evidence["step"]) - 1
    if alert.kind is AlertKind.REPLICA_DIFFERS and "last_good_step" in alert.evidence:
        return int(alert.evidence["last_good_step"])
    return None

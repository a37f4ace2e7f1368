"""The last good step: from alerts that name the first bad one, or the last at which all was well."""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.models.alert import Alert, AlertKind


def earliest_named(alerts: Iterable[Alert]) -> int | None:
    """Return the earliest step that the alerts leave; None: they name none."""
    bounds = [bound for alert in alerts if (bound := _of(alert)) is not None]
    return min(bounds, default=None)


def bound(alerts: Iterable[Alert], known: int | None, *, by_hand: bool) -> int | None:
    """Return the newest step that may be restored; None: no bound.

    Args:
        alerts: all of the incident, also those that joined after it was taken up.
        known: the bound as the incident was taken up.
        by_hand: a person named it for this run, and it stands.
    """
    if by_hand:
        return known
    return min((step for step in (earliest_named(alerts), known) if step is not None), default=None)


def before_jump(alerts: Iterable[Alert], steps: int) -> int | None:
    """Return the last step before the loss or gradient norm jumped; None: no alert reports a jump.

    A jump alone leaves every state: it counts once a machine was found that computes wrong results.

    Args:
        alerts: of the incident.
        steps: so many steps in a row are high before a jump is reported.
    """
    found = [
        max(0, int(alert.evidence["step"]) - steps)
        for alert in alerts
        if alert.kind is AlertKind.METRIC_JUMP and "step" in alert.evidence
    ]
    return min(found, default=None)


def _of(alert: Alert) -> int | None:
    if alert.kind is AlertKind.NON_FINITE and "step" in alert.evidence:
        return int(alert.evidence["step"]) - 1
    if alert.kind is AlertKind.REPLICA_DIFFERS and "last_good_step" in alert.evidence:
        return int(alert.evidence["last_good_step"])
    return None

"""Alerts of an incident that no monitor has reported as over since, or that fire again."""

from __future__ import annotations

from holdfast.models.alert import Alert, AlertKind, Incident
from holdfast.operations.context import Context


def still(ctx: Context, incident: Incident) -> list[Alert]:
    """Return them, in the order of the incident's alerts."""
    newest: dict[tuple[AlertKind, str | None], bool] = {}
    for each in ctx.ledger.alerts(incident.id):  # newest first: what was over may fire again
        newest.setdefault((each.kind, each.machine), each.firing)
    return [alert for alert in incident.alerts if newest.get((alert.kind, alert.machine), True)]

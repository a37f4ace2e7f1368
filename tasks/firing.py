"""Alerts of an incident that no monitor has reported as over since."""

from __future__ import annotations

from holdfast.models.alert import Alert, Incident
from holdfast.operations.context import Context


def still(ctx: Context, incident: Incident) -> list[Alert]:
    """Return them, in the order of the incident's alerts."""
    over = {(each.kind, each.machine) for each in ctx.ledger.alerts(incident.id) if not each.firing}
    return [alert for alert in incident.alerts if (alert.kind, alert.machine) not in over]

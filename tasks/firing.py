"""Alerts of an incident that no monitor has reported as over since, or that fire again."""

from __future__ import annotations

from holdfast.models.alert import Alert, Incident
from holdfast.operations.context import Context


def still(ctx: Context, incident: Incident) -> list[Alert]:
    """Return them, in the order of the incident's alerts."""
    alerts = ctx.ledger.alerts(incident.id)  # newest first: what was over may fire again
    return [
        alert
        for alert in incident.alerts
        if next((each.firing for each in alerts if _of_one_fault(each, alert)), True)
    ]


def _of_one_fault(report: Alert, alert: Alert) -> bool:
    """Return whether a report is about the fault of an alert: another device or check of the machine is another one.

    One that does not say which (a person's, or a monitor's without labels) is about all of its kind.
    """
    if (report.kind, report.machine) != (alert.kind, alert.machine):
        return False
    both = [name for name in alert.kind.row.identifying if name in report.evidence and name in alert.evidence]
    return all(report.evidence[name] == alert.evidence[name] for name in both)

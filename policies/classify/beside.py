"""Signals beside a process's end, a hang or a slow pace that explain it; and too many machines at once."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from holdfast.models.alert import (
    Alert,
    Classification,
    IncidentClass,
)
from holdfast.models.alert_kinds.meaning import Beside
from holdfast.policies.classify import sure_signs
from holdfast.policies.classify.decision import JobContext
from holdfast.policies.classify.meaning import meaning
from holdfast.policies.config.policy import Policy

OF_ALL = frozenset({IncidentClass.NAN_LOSS, IncidentClass.EXTERNAL_SERVICE})
"""Numbers are of all ranks and services are outside, so the first reporter is no evidence."""


def too_many(
    count: int, reasons: tuple[str, ...], context: JobContext, limit: int, incident_class: IncidentClass
) -> Classification:
    """Classify a fault of more machines than may be evicted at once: none is named."""
    return Classification(
        incident_class=incident_class,
        confidence=0.3,
        machine=None,
        reasons=(
            f"{count} machines at once, more than the over-eviction limit of {limit} for "
            f"{len(context.job.machines)} machines: a common cause is likely, a human decides",
            *reasons,
        ),
    )


def explaining(
    alerts: Sequence[Alert], what: Collection[Beside], machine: str | None, policy: Policy
) -> Alert | None:
    """Return the signal that explains it best: a broken machine, then by the table's order, then the earliest."""
    fitting = [
        alert
        for alert in alerts
        if (row := meaning(alert, policy.classify)).beside.intersection(what)
        and (machine is None or alert.machine == machine or not row.same_machine)
    ]

    def weight(alert: Alert) -> tuple[bool, int]:
        broken = meaning(alert, policy.classify).means is IncidentClass.MACHINE_FAULT
        return not broken, alert.kind.row.precedence

    return min(fitting, key=weight, default=None)


def described(alert: Alert) -> str:
    """Return the alert as a reason."""
    where = f" on {alert.machine}" if alert.machine else ""
    return f"at the same time{where}: {sure_signs.describe(alert)}"


def number(value: Any) -> float:
    """Return a number of the evidence; 0 where it is none."""
    return float(value) if isinstance(value, int | float) else 0.0

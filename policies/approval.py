"""Which acts a person approves first."""

from __future__ import annotations

from holdfast.models.alert import IncidentClass
from holdfast.models.machine import Scope
from holdfast.policies.policy import ApprovalPolicy


def why_ask(incident_class: IncidentClass, machines: int, scope: Scope, policy: ApprovalPolicy) -> str:
    """Why an eviction of so many machines must be approved; empty: it need not."""
    for rule in policy.rules:
        if rule.incident_class not in (None, incident_class) or rule.scope not in (None, scope):
            continue
        if machines > rule.machines_over:
            whose = f"{incident_class.value} " if rule.incident_class else ""
            return (
                f"{whose}evictions of more than {rule.machines_over} machines at once "
                f"({machines}, scope {scope.value}) need a person's approval"
            )
    return ""

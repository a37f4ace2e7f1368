"""Verdict from comparisons of replicas alone: they name the machine whose bits are wrong, so no search is needed."""

from __future__ import annotations

from holdfast.models.alert import Verdict
from holdfast.policies.diagnose import odd_replica
from holdfast.storage.ledger.one_view import one_view
from holdfast.tasks.recovery_context import RecoveryContext

_CONFIDENCE = 0.95
_LOOK_BACK = 50
"""Incidents of the job, newest first."""


def verdict(case: RecoveryContext) -> Verdict | None:
    """Return the machines that hold other weights than their replicas; None: there is none, or more than a few."""
    found = _odd(case)
    if not found.machines or len(found.machines) > case.ctx.policy.aggregate.limit(
        len(case.job_now().machines)
    ):
        return None
    return Verdict(suspects=found.machines, confidence=_CONFIDENCE, evidence=found.reasons)


def spared(case: RecoveryContext) -> str:
    """Return why machines whose replicas differ are not accused, as the beginning of a summary; empty: all are."""
    found = _odd(case)
    return "" if found.machines else "".join(f"{reason}; " for reason in found.reasons)


@one_view()
def _odd(case: RecoveryContext) -> odd_replica.Odd:
    job, ctx = case.job_now(), case.ctx
    past = [
        incident
        for incident in ctx.ledger.incidents(job=case.job, limit=_LOOK_BACK)
        if incident.id != case.incident_id and incident.opened_at >= job.submitted_at
    ]
    earlier = [alert for incident in past for alert in incident.alerts]
    return odd_replica.odd(case.incident.alerts, earlier, case.incarnations())

"""Whether a job fails after about as many steps each time, by the ledger."""

from __future__ import annotations

from holdfast.models.alert import Incident
from holdfast.operations.context import Context
from holdfast.policies.classify import signature
from holdfast.policies.escalate import regular

_LOOK_BACK = 40
"""Incidents of the job, newest first."""


def of(ctx: Context, incident: Incident) -> regular.Regular | None:
    """Return what is regular about an incident and those before it since the job's submission; None: nothing is."""
    ledger, job = ctx.ledger, ctx.ledger.job(incident.job)
    epochs = {each.epoch: each for each in ledger.epochs(job.name)}
    listed = ledger.incidents(job.name, limit=_LOOK_BACK)[::-1]
    runs = []
    for each in listed:
        if not job.submitted_at <= each.opened_at <= incident.opened_at or each.epoch not in epochs:
            continue
        run = epochs[each.epoch]
        known: dict[str, object] = {"incident_class": each.incident_class, "version": run.code_version}
        failed = signature.of(each)
        known |= {"what": failed.what, "from_outside": failed.from_outside}
        known["steps"] = run.reached - run.start_step
        runs.append(regular.FailedRun.model_validate(known))
    return regular.find(runs, ctx.policy.ladder.regular)

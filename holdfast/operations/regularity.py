"""Whether a job fails after about as many steps each time, by the ledger."""

from __future__ import annotations

from holdfast.models.alert import Incident
from holdfast.models.history import Epoch
from holdfast.operations.context import Context
from holdfast.policies.classify import signature
from holdfast.policies.escalate import regular

_LOOK_BACK = 40
"""Incidents of the job, newest first."""


def of(ctx: Context, incident: Incident) -> regular.Regular | None:
    """Return what is regular about an incident and those before it since the job's submission; None: nothing is."""
    if not _run(incident).may_grow:  # most are none, and this is asked while the job stands
        return None
    ledger, job = ctx.ledger, ctx.ledger.job(incident.job)
    epochs = {each.epoch: each for each in ledger.epochs(job.name, machines=False)}
    listed = ledger.incidents(job.name, limit=_LOOK_BACK)[::-1]
    runs = [
        _run(each, epochs[each.epoch])
        for each in listed
        if job.submitted_at <= each.opened_at <= incident.opened_at and each.epoch in epochs
    ]
    return regular.find(runs, ctx.policy.ladder.regular)


def came_with(ctx: Context, job_name: str, found: regular.Regular | None, before: str | None) -> str:
    """Return why what is regular came with the running code version; empty: nothing is, or it need not have.

    ``before`` is the version that would be gone back to; None: there is none.
    """
    if found is None or before is None:
        return ""
    job = ctx.ledger.job(job_name)
    steps = [
        each.reached - each.start_step
        for each in ctx.ledger.epochs(job.name, machines=False)
        if each.code_version == before and each.opened_at >= job.submitted_at
    ]
    return regular.came_with(found, job.code_version, before, max(steps, default=0))


def _run(incident: Incident, epoch: Epoch | None = None) -> regular.FailedRun:
    failed = signature.of(incident)
    return regular.FailedRun(
        incident_class=incident.incident_class,
        what=failed.what,
        from_outside=failed.from_outside,
        version=epoch.code_version if epoch else "",
        steps=epoch.reached - epoch.start_step if epoch else 0,
    )

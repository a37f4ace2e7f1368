"""Whether a job fails again, or often: what its earlier incidents say about this one."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.models.alert import Incident
from holdfast.models.job import Job
from holdfast.operations import regularity
from holdfast.operations.context import Context

_QUIET_STEPS = 20
"""Steps since the incident before, without which the full ladder is asked: state, data and code may be suspects."""


@dataclass(frozen=True)
class Recurrence:
    """Earlier failures of the job that may have to do with this one."""

    again: int = 0
    """The newest one came fewer than ``_QUIET_STEPS`` new steps before."""
    often: bool = False
    """There were so many of late that more is checked before a restart."""


def recurrence(ctx: Context, incident: Incident, job: Job) -> Recurrence:
    """Compare an incident with the job's earlier ones since its submission, of any class."""
    listed = ctx.ledger.incidents(job.name, limit=2, evidence=False)
    earlier = [e for e in listed if e.id != incident.id and e.opened_at >= job.submitted_at]
    if not earlier:
        return Recurrence()
    epochs = ctx.ledger.epochs(job.name)
    before = max((each.reached for each in epochs if each.epoch <= earlier[0].epoch), default=0)
    quiet = max((each.reached for each in epochs), default=0) - before
    return Recurrence(again=int(quiet < _QUIET_STEPS), often=often_or_regularly(ctx, incident))


def often_or_regularly(ctx: Context, incident: Incident) -> bool:
    """Return whether more is checked, whatever progress there was: it fails often, or as regularly as by a leak."""
    return fails_often(ctx, incident) or regularity.of(ctx, incident) is not None


def fails_often(ctx: Context, incident: Incident) -> bool:
    """Return whether the job had so many incidents of late, of any class, with any progress, that more is checked."""
    often = ctx.policy.ladder.often
    listed = ctx.ledger.incidents(incident.job, limit=often.incidents + 1, evidence=False)
    since = incident.opened_at - often.window_s
    return sum(since < each.opened_at <= incident.opened_at for each in listed) > often.incidents

"""Evidence of the job's history about its restored state, and the mark on a state that is left behind."""

from __future__ import annotations

from collections import defaultdict

from prefect.logging import get_run_logger

from holdfast.models.alert import Alert, Incident, IncidentClass
from holdfast.models.history import Epoch
from holdfast.operations import restore as choose
from holdfast.policies.restore import poisoned
from holdfast.tasks.recovery_context import RecoveryContext

_LOOK_BACK = 50
"""Incidents of the job, newest first."""


def finding(case: RecoveryContext) -> poisoned.StateFinding:
    """Return whether the state that the broken epoch began with led to the same failure before."""
    return poisoned.find(_runs(case), case.ctx.policy.restore.poisoned)


async def leave_behind(case: RecoveryContext) -> str:
    """Mark the state that the broken epoch began with, in the ledger and in S3; return why. May be repeated."""

    async def act() -> dict[str, object]:
        found = finding(case)
        if found.leave is None:  # an earlier attempt has marked it
            return {"said": "its state was abandoned already"}
        why = f"{case.incident_id}: {found.leave.why}"
        marked = await choose.give_up_state(case.ctx, case.job, found.leave.step, why, case.ledger)
        return {"said": found.leave.why, "step": found.leave.step, "in_s3": marked}

    done = await case.once("suspect", _target(case), {}, act)
    get_run_logger().warning("%s", done["said"])
    return str(done["said"])


def _target(case: RecoveryContext) -> str:
    return f"poisoned-{case.life}"


def _runs(case: RecoveryContext) -> list[poisoned.EpochRun]:
    """Return the job's epochs up to the broken one, since its submission."""
    ledger, job = case.ctx.ledger, case.job_now()
    incidents = ledger.incidents(job=case.job, limit=_LOOK_BACK)
    known = {case.incident_id: case.incident} | {incident.id: incident for incident in incidents}
    ended: dict[int, str] = {}
    for incident in known.values():
        ended |= _failures(case, incident)
    epochs = [
        e for e in ledger.epochs(case.job) if e.opened_at >= job.submitted_at and e.epoch <= case.broken_epoch
    ]
    return [_run(epoch, ended.get(epoch.epoch, "")) for epoch in epochs]


def _run(epoch: Epoch, failure: str) -> poisoned.EpochRun:
    reached = max(epoch.start_step, epoch.last_step or 0)
    return poisoned.EpochRun(epoch=epoch.epoch, start_step=epoch.start_step, reached=reached, failure=failure)


def _failures(case: RecoveryContext, incident: Incident) -> dict[int, str]:
    """Return how each epoch ended that the incident's alerts name."""
    evicted = _evicted(case, incident)
    by_epoch: dict[int, list[Alert]] = defaultdict(list)
    for alert in incident.alerts:
        by_epoch[alert.epoch or incident.epoch].append(alert)
    return {
        epoch: poisoned.failure(_class_of(incident, epoch), alerts, epoch in evicted)
        for epoch, alerts in by_epoch.items()
    }


def _evicted(case: RecoveryContext, incident: Incident) -> set[int]:
    """Return the epochs of the incident for whose end a machine was evicted."""
    epoch, found = incident.epoch, set()
    for action in case.ctx.ledger.actions(incident.id, evidence=False):
        if action.kind == "start":
            epoch = int(action.result.get("epoch") or epoch)
        elif action.kind == "evict" and action.state == "done":
            found.add(epoch)
    return found


def _class_of(incident: Incident, epoch: int) -> IncidentClass:
    """Return the class by which an epoch's end is judged.

    What starts without the lost machine, and falls, is diagnosed as a crash (:mod:`~holdfast.tasks.fell_again`).
    """
    replaced = incident.incident_class is IncidentClass.MACHINE_FAULT and epoch > incident.epoch
    return IncidentClass.JOB_CRASH if replaced else incident.incident_class

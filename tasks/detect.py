"""Step: take up the incident. Reads the ledger, opens an incident for a person's request, takes the job."""

from __future__ import annotations

from prefect import task
from prefect.logging import get_run_logger
from prefect.runtime import flow_run, task_run

from holdfast.errors import QueuedError, RefusedError, StaleError, UnknownError
from holdfast.models.alert import (
    BESIDE_TRAINING,
    Alert,
    AlertKind,
    Classification,
    Incident,
    IncidentClass,
    IncidentState,
)
from holdfast.models.job import JobState
from holdfast.operations import resize
from holdfast.operations.context import Context
from holdfast.operations.inputs import note_taken_up
from holdfast.policies.classify import sure_signs
from holdfast.policies.escalate import modes
from holdfast.policies.restore import last_good
from holdfast.storage.ledger.waits import AGAIN
from holdfast.tasks import firing, lease, returned
from holdfast.tasks.context import context
from holdfast.tasks.recovery_context import RecoveryContext, Request

_WITHOUT_MACHINES = frozenset({JobState.DONE, JobState.STOPPED, JobState.SCALED_TO_ZERO})
"""States of jobs that gave their machines back."""
_OF_A_MACHINE = frozenset({IncidentClass.MACHINE_FAULT, IncidentClass.PLANNED_MOVE})
"""Classes whose playbooks can do nothing for a person who names no machine."""


def _run_name() -> str:
    request = task_run.parameters["request"]
    return f"take up {request.id or request.job}"


@task(task_run_name=_run_name, retries=0)
async def detect(request: Request, incident_class: IncidentClass) -> RecoveryContext:
    """Take up the incident of ``request``, or open one of ``incident_class`` for it.

    Raises:
        UnknownError: no such incident or job.
        StaleError: the incident is closed, or a newer attempt works on it.
        QueuedError: another incident of the job is worked on first.
        RefusedError: another run works on this one; a job is to be scaled that has ended, or that a person holds; or
            what is asked for is not named (a version, a machine).
    """
    ctx = context()
    now = ctx.clock.now()
    if request.id:
        incident = ctx.ledger.incident(request.id)
    else:
        incident = _opened_before(ctx, request) or _open(ctx, request, incident_class, now)
    get_run_logger().info("%s: %s of %s", incident.id, incident.incident_class, incident.job)
    if incident.state is not IncidentState.OPEN:
        raise StaleError(f"incident {incident.id} is closed ({incident.state}): nothing to do")
    if request.id and request.attempt < incident.attempt:
        raise StaleError(
            f"attempt {request.attempt} of {incident.id} was taken over by attempt {incident.attempt}"
        )
    acting = ctx.ledger.acting(incident.job)
    if acting and acting.id != incident.id:
        if incident.flow_run_id == flow_run.id:
            # The gateway starts its run in its turn, unless nothing is left to do by then.
            ctx.ledger.set_incident(incident.id, flow_run_id=None)
        raise QueuedError(
            f"{incident.id} waits: {acting.id} of job {incident.job} is worked on first. It gets a run of its own "
            "then, if anything is left to do"
        )
    held = await lease.take(ctx, incident)
    incident = ctx.ledger.incident(incident.id)  # a head start may have ended meanwhile
    if incident.first_task_at is None:
        incident = ctx.ledger.set_incident(incident.id, first_task_at=now)
    elif incident.attempt > 1:
        _count_attempt(ctx, incident)
    job = ctx.ledger.job(incident.job)
    rounds = len(ctx.ledger.actions(incident.id, AGAIN))
    note_taken_up(ctx, incident.id, job, rounds)
    concerned = [incident.machine] if incident.machine else []
    allowed = modes.may_act(job.spec, incident.incident_class, concerned, ctx.policy.modes)
    if allowed.act:
        if incident.incident_class not in BESIDE_TRAINING:
            mine = ctx.ledger.holding(incident.id, job.name, held)
            # One that was stopped meanwhile stays so: no epoch of it is started.
            mine.set_job(job.name, state=JobState.RECOVERING, unless=JobState.STOPPED)
    else:
        get_run_logger().info("observe only: %s", allowed.reason)
    accused, returned = _accused(ctx, incident, rounds)
    return RecoveryContext(
        incident_id=incident.id,
        attempt=incident.attempt,
        job=incident.job,
        incident_class=incident.incident_class,
        broken_epoch=_broken_epoch(ctx, incident),
        machine=incident.machine,
        rank=incident.rank,
        accused=accused,
        returned=returned,
        last_good_step=_last_good_step(incident, request),
        bound_by_hand=request.last_good_step is not None,
        observe_only=not allowed.act,
        lease=held,
        round=rounds,
    ).within(ctx)


def _count_attempt(ctx: Context, incident: Incident) -> None:
    """Record that this attempt began: only attempts that came so far count (a resumed run begins once)."""
    key = f"attempt:{incident.attempt}"
    ctx.ledger.begin(incident.id, incident.attempt, key, "attempt", {})
    ctx.ledger.finish(incident.id, key)


def _opened_before(ctx: Context, request: Request) -> Incident | None:
    """Return the incident that this very run opened before it was suspended for a person's approval."""
    acting = ctx.ledger.acting(request.job) if request.job else None
    return acting if acting is not None and acting.flow_run_id == flow_run.id else None


def _open(ctx: Context, request: Request, incident_class: IncidentClass, now: float) -> Incident:
    if not request.job:
        raise UnknownError("incident.job is empty: name the job (or an incident id) to recover")
    job = ctx.ledger.job(request.job)
    if incident_class is IncidentClass.SCALE_JOB:
        # As for a person's request: a schedule may outlive its job, and ends no one's hold.
        resize.must_be_scalable(job)
    if incident_class is not IncidentClass.SCALE_JOB and job.state in _WITHOUT_MACHINES:
        # Its machines may serve other jobs by now.
        raise RefusedError(
            f"job {job.name} is {job.state}: there is nothing to recover. One that was stopped goes on by "
            f"`holdfast resume {job.name}`, one at zero by `holdfast scale {job.name} N`"
        )
    if incident_class is IncidentClass.CODE_UPDATE:
        raise RefusedError(
            "a code update is asked for with its version, which is stored first: `holdfast update "
            f"{job.name} --code FOLDER` does both, and starts this playbook"
        )
    if incident_class in _OF_A_MACHINE and not request.machine:
        raise RefusedError(f"incident.machine is empty: name the machine that job {job.name} is to leave")
    if request.machine and request.machine not in job.machines:
        raise UnknownError(
            f"incident.machine = {request.machine!r}: not in job {job.name} ({', '.join(job.machines)})"
        )
    reason = request.reason or "started manually"
    return ctx.ledger.open_incident(
        job.name,
        Classification(
            incident_class=incident_class,
            confidence=1.0,
            machine=request.machine,
            rank=request.rank,
            reasons=(reason,),
        ),
        job.epoch,
        [
            Alert(
                kind=AlertKind.MANUAL,
                job=job.name,
                machine=request.machine,
                rank=request.rank,
                epoch=job.epoch,
                at=now,
                evidence={"text": reason, "class": incident_class.value}
                | ({} if request.machines is None else {"machines": request.machines}),
            )
        ],
        now,
        # This run is at work on it, so that the gateway starts no other; the bound holds for later attempts too.
        flow_run_id=flow_run.id,
        last_good_step=request.last_good_step,
    )


def _broken_epoch(ctx: Context, incident: Incident) -> int:
    """Return the newest epoch that this incident started and saw fail, or the one that the fault hit."""
    fallen = [
        int(action.key.removeprefix("verify:e"))
        for action in ctx.ledger.actions(incident.id, "verify")
        if action.state == "failed"
    ]
    return max([incident.epoch, *fallen])


def _accused(ctx: Context, incident: Incident, rounds: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the root alert's machine and all others with a sure sign, and those of them that restarted since.

    None when the classification names none, or when they are too many. After a wait those are left out whose alerts
    are over: a question about them is not asked once more.
    """
    if incident.machine is None:
        return (), ()
    accused = dict.fromkeys([incident.machine, *sure_signs.find(incident.alerts, ctx.policy.classify)])
    if rounds:
        cleared = {alert.machine for alert in incident.alerts}
        cleared -= {alert.machine for alert in firing.still(ctx, incident)}
        accused = dict.fromkeys(name for name in accused if name not in cleared)
    again = returned.since(ctx, incident)
    still = tuple(name for name in accused if name not in again)
    # Alerts may have joined since the incident was opened for the first of them; who left the job already is over.
    serving = ctx.ledger.job(incident.job).machines
    limit = ctx.policy.aggregate.sure_limit(len(serving))
    few = sum(name in serving for name in still) <= limit
    return (still, tuple(name for name in accused if name in again)) if few else ((), ())


def _last_good_step(incident: Incident, request: Request) -> int | None:
    """Return the step before the first bad one, from alerts with a bad or a last good step; a person's bound wins."""
    if request.last_good_step is not None:
        return request.last_good_step
    bounds = (last_good.earliest_named(incident.alerts), incident.last_good_step)
    return min((bound for bound in bounds if bound is not None), default=None)

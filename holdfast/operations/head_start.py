"""The first acts of a recovery, made by the gateway while the playbook's run is being started.

A run of Prefect takes a quarter of a second to begin, in which the job would stand. What every playbook of the class
does first is done meanwhile: the broken epoch is fenced; and where the other ranks keep their processes, the next epoch
is started after a rank's first death (:mod:`holdfast.policies.restore.restart_first`), and after the loss of a machine
that a standby can replace at once (:mod:`holdfast.policies.restore.replace_first`). The acts are the playbook's own,
with their intents in the ledger: it finds them done, or repeats what is missing. Nothing is judged here: no machine but
one that was found dead is evicted, no other code and no older state is taken.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import dataclass

from holdfast.errors import HoldfastError
from holdfast.models.agent import OpenRendezvous, Rendezvous
from holdfast.models.alert import Incident, Rung
from holdfast.models.classes import IncidentClass
from holdfast.models.job import Job, JobState
from holdfast.models.lease import HEAD_START, HEAD_START_S
from holdfast.operations import flaps, offenders
from holdfast.operations import pause as stopping
from holdfast.operations.context import Context
from holdfast.operations.fence import Fenced
from holdfast.operations.inputs import note_taken_up
from holdfast.operations.launch import launch
from holdfast.operations.once import Actor, lease_holder
from holdfast.operations.recurrence import Recurrence, recurrence
from holdfast.operations.replace import replace_lost
from holdfast.policies.classify import suspects
from holdfast.policies.escalate import code, modes
from holdfast.policies.restore import last_good, restart_first
from holdfast.policies.restore.restart_first import DeathFacts

_log = logging.getLogger(__name__)

CLASSES = frozenset({IncidentClass.JOB_CRASH, IncidentClass.MACHINE_FAULT})
"""Classes whose playbooks stop the job before everything else."""


async def head_start(ctx: Context, incident: Incident, *, keeps: bool = True) -> None:
    """Make the first acts for a new incident, within seconds; errors are logged, since the playbook does the rest.

    Args:
        ctx: services.
        incident: just opened.
        keeps: whether ranks of the job may keep their processes, so that its next epoch may be started first.

    Raises:
        StaleError: the incident was closed or taken up meanwhile.
        RefusedError: a run acts on the job already.
    """
    job = ctx.ledger.job(incident.job)
    if incident.incident_class not in CLASSES or incident.attempt != 1 or job.epoch != incident.epoch:
        return
    concerned = [incident.machine] if incident.machine else []
    if not modes.may_act(job.spec, incident.incident_class, concerned, ctx.policy.modes).act:
        return
    holder = lease_holder()
    ctx.ledger.take_job(incident.id, incident.attempt, HEAD_START, holder, HEAD_START_S)
    actor = Actor(ctx, incident.id, job.name, incident.attempt, holder)
    try:
        async with asyncio.timeout(HEAD_START_S - 1.0):
            await _acts(actor, incident, job, keeps=keeps)
    except TimeoutError:
        _log.info("%s: the head start took too long; the playbook goes on", incident.id)
    except HoldfastError as error:
        _log.info("%s: the head start ended: %s", incident.id, error)
    finally:
        with contextlib.suppress(HoldfastError):
            ctx.ledger.release_job(job.name, holder)


async def _acts(actor: Actor, incident: Incident, job: Job, *, keeps: bool) -> None:
    ctx = actor.ctx
    broken = stopping.Broken(
        job=job.name,
        epoch=incident.epoch,
        incident_id=incident.id,
        incident_class=incident.incident_class,
        last_good_step=incident.last_good_step,
        given_up=(incident.machine,) if incident.machine else (),
    )
    fenced: list[Fenced] = []

    async def stop() -> dict[str, object]:
        fenced.append(await stopping.stop_epoch(ctx, actor.ledger, broken))
        return stopping.result(ctx, broken, fenced[0])

    # Made meanwhile: the next epoch finds them there.
    meeting = asyncio.create_task(_meeting(ctx, incident, job))
    noting = asyncio.create_task(asyncio.to_thread(_note, actor, incident, job, keeps=keeps))
    try:
        await actor.once("pause", f"e{incident.epoch}", stopping.intent(ctx, broken), stop)
    finally:
        with contextlib.suppress(HoldfastError):
            await meeting
        past = await noting
    stopped = fenced[0] if fenced else Fenced({})
    now = ctx.ledger.incident(incident.id)  # with the alerts that joined meanwhile
    if incident.incident_class is IncidentClass.MACHINE_FAULT:
        why = await replace_lost(actor, now, stopped)
    else:
        why = await _restarted_first(actor, now, job, stopped, past)
    if why:
        _log.info("%s: the head start ends with the pause: %s", incident.id, why)
        return

    async def start() -> dict[str, object]:
        launched = await launch(
            ctx,
            job.name,
            f"{incident.incident_class} {incident.id}",
            incident_id=incident.id,
            ledger=actor.ledger,
            bound=incident.last_good_step,
            settled=stopped.settled,
            keep_s=ctx.policy.keep_processes.wait_s,
        )
        return launched.model_dump(mode="json")

    await actor.once("start", f"after-e{incident.epoch}", {"bound": incident.last_good_step}, start)


async def _restarted_first(
    actor: Actor, incident: Incident, job: Job, stopped: Fenced, past: _Past | None
) -> str:
    """Record that the job is restarted before its diagnosis; return why it is not, empty: it is."""
    if past is None:
        return "no rank keeps its process"
    if why := _why_not(actor.ctx, incident, job, stopped, past):
        return why

    async def decided() -> dict[str, object]:
        return {"diagnosed_first": "", "by": "the gateway"}

    await actor.once("first", f"e{incident.epoch}", {}, decided)
    return ""


async def _meeting(ctx: Context, incident: Incident, job: Job) -> Rendezvous | None:
    if incident.machine == job.machines[0]:
        return None
    (first,) = ctx.ledger.machines_named(job.machines[:1])
    return await ctx.agent(first).open_rendezvous(
        OpenRendezvous(
            job=job.name, epoch=job.epoch + 1, incarnation=first.incarnation, world_size=job.spec.world_size
        )
    )


@dataclass(frozen=True)
class _Past:
    """The job's past and its machines', as the ledger has them."""

    recurrence: Recurrence
    rung: Rung


def _note(actor: Actor, incident: Incident, job: Job, *, keeps: bool) -> _Past | None:
    """Record that the incident was taken up, and read what the decision needs, where there is one (blocking)."""
    note_taken_up(actor.ctx, incident.id, job, 0)
    actor.ledger.set_job(job.name, state=JobState.RECOVERING, unless=JobState.STOPPED)
    if not keeps or incident.incident_class is IncidentClass.MACHINE_FAULT:
        return None
    return _Past(recurrence(actor.ctx, incident, job), _rung(actor.ctx, incident, job))


def _why_not(ctx: Context, incident: Incident, job: Job, stopped: Fenced, past: _Past) -> str:
    """Return why the next epoch is not started by the gateway; by fewer facts than the playbook has, never by more."""
    policy = ctx.policy
    raised, cause = restart_first.own_end(incident.alerts)
    death = DeathFacts(
        incident_class=incident.incident_class,
        kept=stopped.kept if last_good.earliest_named(incident.alerts) is None else 0,
        silent=stopped.lost,
        again=past.recurrence.again,
        often=past.recurrence.often,
        rung=past.rung,
        raised=raised,
        cause=cause,
        accused=suspects.named(incident.alerts, None, job),
    )
    return restart_first.why_diagnosed_first(death, wanted=policy.keep_processes.restart_first)


def _rung(ctx: Context, incident: Incident, job: Job) -> Rung:
    """Return a rung that comes before a retry, if one might."""
    ledger, policy, now = ctx.ledger, ctx.policy.ladder, ctx.clock.now()
    changed_at = code.changed_at(ledger.epochs(job.name), job.submitted_at)
    if changed_at is not None and incident.detected_at - changed_at <= policy.code_changed_s:
        return Rung.ROLLBACK
    accused = {incident.machine or ""}
    if accused & offenders.find(ledger, now, policy) or flaps.find(ledger, accused, now, ctx.policy):
        return Rung.EVICT
    return Rung.RETRY

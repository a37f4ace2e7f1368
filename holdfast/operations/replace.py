"""Replace a lost machine while its playbook is being started: evict it, give its slot to a standby.

The acts are the playbook's own, under its keys in the ledger: it finds them done, or does what is missing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.errors import LimitError
from holdfast.models.alert import Incident
from holdfast.models.job import Job
from holdfast.operations import swap
from holdfast.operations.evict import ask_breaker, breaker_of, take_out_for, uncounted
from holdfast.operations.fence import Fenced
from holdfast.operations.once import Actor
from holdfast.policies.classify import sure_signs
from holdfast.policies.escalate import approval
from holdfast.policies.restore import last_good, replace_first
from holdfast.policies.restore.replace_first import Loss
from holdfast.storage.ledger.evictions import UNCOUNTED


async def replace_lost(actor: Actor, incident: Incident, stopped: Fenced) -> str:
    """Replace the machine that ``incident`` accuses, if it is surely lost; return why not, empty: it is replaced.

    Args:
        actor: the gateway, under the job's lease.
        incident: as it stands now.
        stopped: answers of the job's machines to the order to stop.

    Raises:
        HoldfastError: an act failed; the playbook does what is missing.
    """
    ctx, ladder = actor.ctx, actor.ctx.policy.ladder
    job, scope = ctx.ledger.job(incident.job), ladder.of(incident.incident_class).scope
    sure = _sure(actor, incident, job)
    loss = _loss(actor, incident, job, stopped, sure)
    if why := replace_first.why_playbook(loss):
        return why
    machine, slot = loss.machine, job.machines.index(loss.machine)
    meant = ctx.ledger.machine(machine).incarnation
    reason = sure[machine]

    async def evict() -> dict[str, Any]:
        restarted = await take_out_for(actor, machine, reason, scope, meant)
        return {"reason": restarted or reason, "scope": scope.value, "at": ctx.clock.now()}

    async def place() -> dict[str, Any]:
        return await swap.place(ctx, actor.ledger, job.name, slot, machine)

    intent: dict[str, Any] = {"reason": reason, "scope": scope.value, "incarnation": meant}
    if uncounted(ctx, job, [machine], [machine]):
        intent[UNCOUNTED] = True
    may = breaker_of(ctx, job, [machine], [machine])  # runs of other jobs may have begun some meanwhile
    ctx.ledger.begin_evictions(incident.id, actor.attempt, {f"evict:{machine}": intent}, may, actor.lease)
    await actor.once("evict", machine, intent, evict)
    await actor.once("swap", machine, {"slot": slot}, place)
    return ""


def _sure(actor: Actor, incident: Incident, job: Job) -> dict[str, str]:
    """Return the machines of the job that alerts surely accuse in their present life, with the reasons."""
    present = {each.name: each.incarnation for each in actor.ctx.ledger.machines_named(job.machines)}
    return sure_signs.find(sure_signs.of_present(incident.alerts, present), actor.ctx.policy.classify)


def _loss(actor: Actor, incident: Incident, job: Job, stopped: Fenced, sure: Mapping[str, str]) -> Loss:
    ctx, machine = actor.ctx, incident.machine or ""
    known = Loss(
        incident_class=incident.incident_class,
        machine=machine,
        unreached=stopped.lost,
        silent=stopped.silent,
        kept=stopped.kept if last_good.earliest_named(incident.alerts) is None else 0,
        sure=tuple(sure),
    )
    if machine not in job.machines or not known.kept:
        return known
    life = ctx.ledger.machine(machine).incarnation
    scope = ctx.policy.ladder.of(incident.incident_class).scope
    return known.model_copy(
        update={
            "seen_lost": replace_first.seen_lost(incident.alerts, machine, life),
            "asks": approval.why_ask(incident.incident_class, 1, scope, ctx.policy.approval),
            "breaker": _breaker(actor, job, machine, stopped),
            "standby": swap.at_hand(ctx, [machine]) == 1,
        }
    )


def _breaker(actor: Actor, job: Job, machine: str, stopped: Fenced) -> str:
    dead = [name for name in stopped.lost if name not in stopped.silent]
    try:
        ask_breaker(actor.ctx, job, [machine], actor.incident_id, dead)
    except LimitError as limit:
        return str(limit)
    return ""

"""Routes by which people act on machines and answer playbooks; the ledger has each request before it is done."""

from __future__ import annotations

import asyncio
import uuid
from typing import Annotated

from fastapi import APIRouter, Query, Request
from pydantic import Field, field_validator

from holdfast.deployments.gateway.api.audit import Asked, audited, describe, who
from holdfast.deployments.gateway.gateway import Gateway
from holdfast.deployments.gateway.intake.outcome import Outcome, What
from holdfast.errors import RefusedError, ReplacedUnitError
from holdfast.models.alert import Alert, AlertKind, Incident, IncidentClass
from holdfast.models.history import ByHand
from holdfast.models.job import ENDED
from holdfast.models.machine import OUT, Machine, MachineState, Scope
from holdfast.models.names import IncidentId, MachineName
from holdfast.policies.classify import sure_signs


class Evict(Asked):
    """Reason for which a machine is taken out, and scope of its cordon."""

    scope: Scope = Scope.CLUSTER
    reason: str = Field("requested by an operator", max_length=2000)

    @field_validator("reason")
    @classmethod
    def _says_something(cls, reason: str) -> str:
        if not reason.strip():
            raise ValueError(
                "it is what others read at the cordoned machine: say why, or leave the field out"
            )
        return reason


class ApprovalAnswer(Asked):
    """A person's answer to what a playbook asks."""

    approve: bool


def routes(gateway: Gateway) -> APIRouter:
    """Return the routes, for this gateway."""
    router = APIRouter(prefix="/v1")
    site, ledger = gateway.site, gateway.site.ledger

    @router.post("/incidents/{incident_id}/approve")
    async def approve(request: Request, incident_id: IncidentId, body: ApprovalAnswer) -> Incident:
        asker = who(request, body.by)

        async def act() -> Incident:
            if body.approve and await gateway.waiting.approves(incident_id):
                return await gateway.waiting.approve(incident_id, asker.by, body.reason)
            return await gateway.approvals.answer(incident_id, body.approve, asker.by, body.reason)

        await asyncio.to_thread(ledger.incident, incident_id)
        asked = asker.asks("approve" if body.approve else "refuse", incident_id, body.reason)
        return await audited(site, asked, act, lambda _: "answered")

    @router.post("/machines/{name}/evict")
    async def evict(request: Request, name: MachineName, body: Evict) -> Outcome:
        machine = await site.machine(name)
        asker = who(request, body.by)

        async def act() -> Outcome:
            if machine.state in OUT:
                raise RefusedError(f"machine {name} is {machine.state} already ({machine.cordon_reason})")
            if machine.job is None:
                return await _take_out(gateway, machine, body)
            approved = await _approved(gateway, machine, asker.by, body.reason, body.scope)
            if approved is not None and not await _of_a_former_life(gateway, approved, machine):
                message = f"it is the yes to what {approved.id} asked"
                return Outcome(incident=approved.id, outcome=What.JOINED, message=message)
            if await _has_ended(gateway, machine.job):
                return await _take_out(gateway, machine, body)
            return await gateway.correlator.accept(_eviction(machine, body, asker.by, site.clock.now()))

        asked = asker.asks("evict", name, f"{body.reason} (scope {body.scope.value})")
        return await audited(site, asked, act, describe)

    @router.post("/machines/{name}/release")
    async def release(request: Request, name: MachineName, body: Asked | None = None) -> Machine:
        machine, body = await site.machine(name), body or Asked()

        async def act() -> Machine:
            if machine.state not in OUT and not _never_came(gateway, machine):
                raise RefusedError(f"machine {name} is {machine.state}: only an evicted one can be released")
            why = f"{body.by or 'an unnamed person'} released it"
            await asyncio.to_thread(ledger.cancel_repairs, name, why)
            await _release(gateway, machine)
            return await site.machine(name)

        asked = who(request, body.by).asks("release", name, body.reason)
        return await audited(site, asked, act, lambda machine: f"now {machine.state.value}")

    @router.get("/by-hand")
    def by_hand(target: str | None = None, limit: Annotated[int, Query(ge=1, le=1000)] = 100) -> list[ByHand]:
        return ledger.by_hand(target, limit)

    return router


async def _take_out(gateway: Gateway, machine: Machine, body: Evict) -> Outcome:
    """Evict a machine on which no rank runs; a job that failed takes a standby in its place at its next start."""
    await gateway.acts.take_out(machine, body.reason, body.scope)
    return Outcome(outcome=What.CORDONED, message=f"machine {machine.name} is out of service")


async def _has_ended(gateway: Gateway, job: str) -> bool:
    """Return whether nothing of the job runs and no playbook works on it: none would evict the machine."""
    ledger = gateway.site.ledger
    if (await asyncio.to_thread(ledger.job, job)).state not in ENDED:
        return False
    return await asyncio.to_thread(ledger.acting, job, evidence=False) is None


async def _approved(
    gateway: Gateway, machine: Machine, by: str, reason: str, scope: Scope
) -> Incident | None:
    """Take an eviction by hand as the yes to a question about it, open or run out; None: no incident asks it."""
    ledger = gateway.site.ledger
    if approved := await gateway.approvals.approve_by_evicting(machine, by, reason, scope):
        return approved
    for wait in await asyncio.to_thread(ledger.waits):
        # Where the job trains, a new look may find another machine, or none: what a person asks for is done by itself.
        if wait.runs_on or wait.job != machine.job or not await gateway.waiting.approves(wait.incident_id):
            continue
        actions = await asyncio.to_thread(ledger.actions, wait.incident_id)
        targets = [str(action.intent.get("target")) for action in actions if action.kind == "approve"]
        if targets[-1:] == [machine.name]:
            return await gateway.waiting.approve(wait.incident_id, by, reason, scope)
    return None


async def _of_a_former_life(gateway: Gateway, approved: Incident, machine: Machine) -> bool:
    """Return whether the machine restarted since it was accused: the yes evicts it no more, so it is evicted by itself.

    As :func:`holdfast.tasks.returned.since` decides for the playbook.
    """
    incident = await asyncio.to_thread(gateway.site.ledger.incident, approved.id)
    policy = gateway.site.policy.classify
    lives = {
        alert.incarnation
        for alert in incident.alerts
        if alert.machine == machine.name and sure_signs.is_sure(alert, policy)
    }
    return bool(lives) and not lives & {None, machine.incarnation}


async def _release(gateway: Gateway, machine: Machine) -> None:
    """Restart an evicted machine; its state is unchanged when that fails.

    Also one that was released before and never came: a gateway that was killed in the middle of this left it so.

    Raises:
        RefusedError: it is in service by now, or on its way.
    """
    ledger, again = gateway.site.ledger, _never_came(gateway, machine)
    before = await asyncio.to_thread(ledger.begin_release, machine.name, again=again)
    try:
        # One that never came may be another unit than the one that is on record: the first release started it.
        await _restart(gateway, before, "" if again else before.incarnation)
    except Exception:
        await asyncio.to_thread(ledger.undo_release, before)
        raise


async def _restart(gateway: Gateway, before: Machine, incarnation: str) -> None:
    """Have the driver restart what was evicted; also what a release that failed had started, which never registered.

    Raises:
        ReplacedUnitError: another unit of that name registered since.
    """
    try:
        await gateway.acts.release(before.name, incarnation)
    except ReplacedUnitError:
        present = await asyncio.to_thread(gateway.site.ledger.machine, before.name)
        if present.state is not MachineState.PROVISIONING or present.incarnation != before.incarnation:
            raise
        await gateway.acts.release(before.name, "")


def _never_came(gateway: Gateway, machine: Machine) -> bool:
    """Return whether the machine is on its way, and nothing was heard of it for long."""
    site = gateway.site
    silent_s = site.fleet.silent_s(machine.name, site.clock.now())
    return machine.state is MachineState.PROVISIONING and silent_s > site.lease_of(machine)


def _eviction(machine: Machine, body: Evict, by: str, now: float) -> Alert:
    return Alert(
        kind=AlertKind.MANUAL,
        job=machine.job,
        machine=machine.name,
        incarnation=machine.incarnation,
        at=now,
        # Asked for twice is asked for once more.
        fingerprint=f"evict:{machine.name}:{uuid.uuid4().hex}",
        evidence={
            "by": by,
            "text": body.reason,
            "class": IncidentClass.MACHINE_FAULT.value,
            "scope": body.scope.value,
        },
    )

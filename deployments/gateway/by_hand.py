"""Routes by which people act on machines and answer playbooks; the ledger has each request before it is done."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from typing import Annotated, TypeVar

from fastapi import APIRouter, Query, Request
from pydantic import Field

from holdfast.deployments.gateway.gateway import Gateway
from holdfast.deployments.gateway.outcome import Outcome, What
from holdfast.deployments.gateway.page.session import Session
from holdfast.deployments.gateway.tidy import clean
from holdfast.errors import HoldfastError, RefusedError
from holdfast.models.alert import Alert, AlertKind, Incident, IncidentClass
from holdfast.models.base import Frozen
from holdfast.models.history import ActionState, ByHand
from holdfast.models.machine import OUT, Machine, MachineState, Scope

SOMEBODY = "somebody"

Result = TypeVar("Result")


class Asked(Frozen):
    """Who asks, and why. The name of a person who is logged in on the status page is that of the login."""

    by: str = Field(SOMEBODY, max_length=200)
    reason: str = Field("", max_length=2000)


class Evict(Asked):
    """Why a machine is taken out, and for whom."""

    scope: Scope = Scope.CLUSTER
    reason: str = Field("asked for by hand", max_length=2000)


class Answer(Asked):
    """A person's answer to what a playbook asks."""

    approve: bool


def routes(gateway: Gateway) -> APIRouter:
    """The routes, for this gateway."""
    router = APIRouter(prefix="/v1")
    site, ledger = gateway.site, gateway.site.ledger

    @router.post("/incidents/{incident_id}/approve")
    async def approve(request: Request, incident_id: str, body: Answer) -> Incident:
        by, via = who(request, body)

        async def act() -> Incident:
            return await gateway.approvals.answer(incident_id, body.approve, by, body.reason)

        await asyncio.to_thread(ledger.incident, incident_id)
        verb = "approve" if body.approve else "refuse"
        entry = await _note(gateway, verb, incident_id, (by, via), body.reason)
        return await _audited(gateway, entry, act, lambda _: "answered")

    @router.post("/machines/{name}/evict")
    async def evict(request: Request, name: str, body: Evict) -> Outcome:
        machine = await site.machine(name)
        by, via = who(request, body)

        async def act() -> Outcome:
            if machine.state in OUT:
                raise RefusedError(f"machine {name} is {machine.state} already ({machine.cordon_reason})")
            if machine.job is None:
                await gateway.acts.take_out(machine, body.reason, body.scope)
                return Outcome(outcome=What.CORDONED, message=f"machine {name} is out of service")
            return await gateway.correlator.accept(_eviction(machine, body, by, site.clock.now()))

        entry = await _note(gateway, "evict", name, (by, via), f"{body.reason} (scope {body.scope.value})")
        return await _audited(gateway, entry, act, _told)

    @router.post("/machines/{name}/release")
    async def release(request: Request, name: str, body: Asked | None = None) -> Machine:
        machine = await site.machine(name)
        by, via = who(request, body or Asked())

        async def act() -> Machine:
            if machine.state not in OUT:
                raise RefusedError(f"machine {name} is {machine.state}: only an evicted one can be released")
            await _release(gateway, machine)
            return await site.machine(name)

        entry = await _note(gateway, "release", name, (by, via), (body or Asked()).reason)
        return await _audited(gateway, entry, act, lambda machine: f"now {machine.state.value}")

    @router.get("/by-hand")
    def by_hand(target: str | None = None, limit: Annotated[int, Query(ge=1, le=1000)] = 100) -> list[ByHand]:
        return ledger.by_hand(target, limit)

    return router


def who(request: Request, body: Asked) -> tuple[str, str]:
    """The person's name, and the way by which the request came."""
    session: Session | None = getattr(request.state, "session", None)
    return (session.by, "page") if session else (body.by or SOMEBODY, "api")


async def _note(gateway: Gateway, act: str, target: str, asked: tuple[str, str], reason: str) -> ByHand:
    (by, via), note = asked, gateway.site.ledger.note_by_hand
    return await asyncio.to_thread(note, act, target, by=clean(by), via=via, reason=clean(reason))


async def _audited(
    gateway: Gateway, entry: ByHand, act: Callable[[], Awaitable[Result]], say: Callable[[Result], str]
) -> Result:
    """Do it, and write down what came of it; one whose gateway was killed meanwhile keeps the state ``intent``."""
    end = gateway.site.ledger.end_by_hand
    try:
        result = await act()
    except HoldfastError as error:
        await asyncio.to_thread(end, entry.id, ActionState.FAILED, str(error))
        raise
    state = ActionState.DONE
    if isinstance(result, Outcome) and result.outcome is What.REFUSED:
        state = ActionState.FAILED
    await asyncio.to_thread(end, entry.id, state, say(result))
    return result


def _told(outcome: Outcome) -> str:
    return f"{outcome.outcome.value} {outcome.incident or ''} {outcome.message}".strip()


async def _release(gateway: Gateway, machine: Machine) -> None:
    """Start an evicted machine anew; it stays as it was when that does not work."""
    change, name = gateway.site.ledger.set_machine, machine.name
    await asyncio.to_thread(
        change, name, state=MachineState.PROVISIONING, cordon_scope=None, cordon_reason=None
    )
    try:
        await gateway.acts.release(name)
    except Exception:
        await asyncio.to_thread(
            change,
            name,
            state=machine.state,
            cordon_scope=machine.cordon_scope,
            cordon_reason=machine.cordon_reason,
        )
        raise


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

"""Routes for agents: registration, heartbeats, events."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Annotated, TypeVar

from fastapi import APIRouter, Depends, Request
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError

from holdfast.deployments.gateway.api.sanitize import clean, tidy
from holdfast.deployments.gateway.gateway import Gateway
from holdfast.deployments.gateway.intake.outcome import Outcome, What
from holdfast.deployments.gateway.site import log
from holdfast.errors import HoldfastError, RefusedError, StaleError, UnknownError
from holdfast.models import tolerant
from holdfast.models.agent import Heard, Heartbeat, Register, Report
from holdfast.models.alert import Alert, AlertKind, Finding
from holdfast.models.base import Frozen
from holdfast.models.machine import Machine, MachineState
from holdfast.policies.detect import silence
from holdfast.policies.escalate import cut_off
from holdfast.policies.pool import flapping

T = TypeVar("T")


class Taken(Frozen):
    """Answer to a report: one outcome per alert."""

    outcomes: tuple[Outcome, ...] = ()


def _parsed(read: Callable[[bytes], T]) -> Callable[[Request], Awaitable[T]]:
    """Parse an agent's request body with ``read``; the agent may run another version."""

    async def body(request: Request) -> T:
        try:
            return read(await request.body())
        except ValidationError as error:
            raise RequestValidationError(error.errors()) from None

    return body


_REGISTER = Depends(_parsed(partial(tolerant.read, Register)))
_REPORT = Depends(_parsed(partial(tolerant.read, Report)))
_USABLE = Depends(_parsed(partial(tolerant.read_part, Heartbeat)))
"""All of a heartbeat that can be used, and what was left out: for one wrong number no machine is taken for silent."""


def routes(gateway: Gateway) -> APIRouter:
    """Return the routes, for this gateway."""
    router = APIRouter(prefix="/v1/agents")
    site = gateway.site
    warned: set[str] = set()
    """Of machines whose heartbeats were read in part: the next such one comes in a second."""

    @router.post("/register")
    async def register(body: Annotated[Register, _REGISTER]) -> Machine:
        known = body.model_copy(update={"checks": tuple(_cleaned(each) for each in body.checks)})
        machine, before = await asyncio.to_thread(site.ledger.register, known, not gateway.admissions.on)
        site.fleet.registered(machine, site.clock.now())
        restarted = before is not None and before.incarnation != machine.incarnation
        if before is not None and restarted and before.state in (MachineState.ACTIVE, MachineState.STANDBY):
            await asyncio.to_thread(
                site.ledger.record_alert, _restarted(machine, site.clock.now()), None, "counted"
            )
        if before is not None and restarted and before.state is MachineState.ACTIVE:
            site.spawn(gateway.exits.restarted(machine, before), f"restarted {machine.name}")
        return machine

    @router.post("/heartbeat")
    async def heartbeat(parsed: Annotated[tuple[Heartbeat, list[str]], _USABLE]) -> Heard:
        body, left_out = parsed
        machine = await admit(gateway, body.machine, body.incarnation)
        if left_out:
            level = logging.DEBUG if machine.name in warned else logging.WARNING
            log.log(level, "%s: left out of its heartbeats: %s", machine.name, "; ".join(left_out))
            warned.add(machine.name)
        now = site.clock.now()
        gateway.observe(body, whole=not left_out)
        site.metrics.heartbeats.labels("in part" if left_out else "taken").inc()
        site.fleet.unwritten[body.machine, body.incarnation] = now
        for run in body.jobs:
            gateway.progress.record(body.machine, run, body.at)
        return Heard(
            lease_s=gateway.leases.grant(machine, body),
            longest_delay_s=silence.longest_delay_s(site.settings.heartbeat_s, site.policy.gateway),
            renews=machine.state is not MachineState.DRAINING,
            witnesses=site.fleet.witnesses(body.machine),
            plan=gateway.roles.plan_for(body),
            term=gateway.term(),
        )

    @router.post("/events")
    async def events(body: Annotated[Report, _REPORT]) -> Taken:
        await admit(gateway, body.machine, body.incarnation)
        if body.job is not None and body.epoch is not None:
            await gateway.progress.note(body.job, body.epoch, body.machine, body.started, body.at)
        gateway.replicas.record(body)
        outcomes = [await _take(gateway, body, alert) for alert in body.alerts]
        for checkpoint in body.checkpoints:
            if checkpoint.job in site.fleet.jobs:
                await asyncio.to_thread(site.ledger.record_checkpoint, checkpoint)
        if body.job is not None and body.dropped:
            await asyncio.to_thread(site.ledger.forget_checkpoints, body.job, body.dropped)
        if body.job is not None and body.epoch is not None:
            await gateway.progress.note_done(body.job, body.epoch, body.done)
        return Taken(outcomes=tuple(outcomes))

    return router


def _cleaned(finding: Finding) -> Finding:
    """Return the result of a self-check with text that every database takes: tools print what they like."""
    return finding.model_copy(update={"check": clean(finding.check), "detail": clean(finding.detail)})


def _restarted(machine: Machine, now: float) -> Alert:
    """Return the alert by which restarts of a machine's agent are counted."""
    evidence = {"check": flapping.RESTARTED, "detail": "its agent restarted"}
    return Alert(
        kind=AlertKind.HOST_FAULT,
        machine=machine.name,
        incarnation=machine.incarnation,
        at=now,
        evidence=evidence,
    )


async def admit(gateway: Gateway, name: str, incarnation: str) -> Machine:
    """Return the machine that sent the request.

    Raises:
        UnknownError: no such machine: its agent registers.
        StaleError: it was replaced or evicted: its agent ends.
    """
    fleet = gateway.site.fleet
    try:
        return fleet.admit(name, incarnation)
    except HoldfastError:
        # An agent ends at such an answer: the ledger decides, not the state that we read half a second ago.
        try:
            await gateway.site.machine(name)
            return fleet.admit(name, incarnation)
        except (UnknownError, StaleError) as error:
            gateway.site.metrics.heartbeats.labels(type(error).__name__).inc()
            raise


async def _take(gateway: Gateway, report: Report, alert: Alert) -> Outcome:
    if alert.machine not in (None, report.machine):
        error = RefusedError(f"machine {report.machine} cannot report alerts of machine {alert.machine}")
        return Outcome(outcome=What.REFUSED, message=str(error), error=type(error).__name__)
    own: dict[str, object] = {
        "machine": report.machine,
        "incarnation": alert.incarnation or report.incarnation,
    }
    if cut_off.is_cut_off(alert):
        site = gateway.site
        also = cut_off.late(site.fleet.late_s(site.window_s, site.clock.now()), report.machine)
        own["evidence"] = {**alert.evidence, **also}
    try:
        known = tidy(alert.model_copy(update=own))
    except HoldfastError as error:
        return Outcome(outcome=What.REFUSED, message=str(error), error=type(error).__name__)
    (outcome,) = await gateway.correlator.accept_all([known])
    return outcome

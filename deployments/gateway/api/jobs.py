"""Routes that change jobs: what people ask for."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Literal, TypeVar

from fastapi import APIRouter, Request
from pydantic import Field

from holdfast.deployments.gateway.api.audit import Act, audited, describe, who
from holdfast.deployments.gateway.fleet.launch import seat, start, submit
from holdfast.deployments.gateway.gateway import Gateway
from holdfast.deployments.gateway.intake.outcome import Outcome, What
from holdfast.errors import RefusedError, StaleError, UnavailableError
from holdfast.models.alert import Alert, AlertKind, IncidentState, MoveSource
from holdfast.models.base import Frozen
from holdfast.models.checkpoint import Choice
from holdfast.models.job import WAS_STOPPED, Job, JobSpec, JobState
from holdfast.models.machine import Machine, MachineState
from holdfast.models.names import JobName, MachineName, MachineOrNone, Version
from holdfast.models.roles import MOST_REPLICAS, RoleName
from holdfast.policies.escalate import waits

Result = TypeVar("Result")


class Submit(Frozen):
    """A job to run; its code is in S3 already."""

    spec: JobSpec
    code_version: Version


class Pause(Frozen):
    """Where to hold; 0: as soon as possible."""

    at_step: int = Field(0, ge=0)


class MoveBody(Frozen):
    """A machine that the job is to leave."""

    machine: MachineName
    to: MachineOrNone = ""
    """The standby that is wanted; empty: any."""
    source: MoveSource = MoveSource.BY_HAND
    reason: str = Field("", max_length=2000)
    deadline_s: float | None = Field(None, gt=0)
    """Seconds until the machine is gone; None: it stays."""
    by: str = Field("", max_length=200)


class Update(Frozen):
    """A code version to switch to; it is in S3 already."""

    version: Version
    when: Literal["now", "lazy"] = "now"
    note: str = Field("", max_length=2000)
    by: str = Field("", max_length=200)


class Scale(Frozen):
    """Another number of machines; 0: none, until it is scaled again."""

    machines: int = Field(ge=0)
    note: str = Field("", max_length=2000)
    by: str = Field("", max_length=200)


class ScaleRole(Frozen):
    """Another number of replicas of a role; 0: none, until it is scaled again."""

    replicas: int = Field(ge=0, le=MOST_REPLICAS)
    note: str = Field("", max_length=2000)
    by: str = Field("", max_length=200)


def routes(gateway: Gateway) -> APIRouter:
    """Return the routes, for this gateway."""
    router = APIRouter(prefix="/v1")
    site = gateway.site

    async def done(asked: Act, work: Callable[[], Awaitable[Result]]) -> Result:
        return await audited(site, asked, work, _describe)

    @router.post("/jobs")
    async def submit_job(request: Request, body: Submit) -> Job:
        async def work() -> Job:
            return await submit(gateway, body.spec, body.code_version)

        asked = who(request).asks("submit", body.spec.name, f"code {body.code_version}")
        return await done(asked, work)

    @router.post("/jobs/{name}/pause")
    async def pause(request: Request, name: JobName, body: Pause | None = None) -> Job:
        job, at_step = await site.job(name), (body or Pause()).at_step

        async def work() -> Job:
            await _must_be_idle(gateway, job)
            await gateway.acts.hold(name, at_step)
            return await site.job(name)

        return await done(who(request).asks("pause", name, f"at step {at_step}" if at_step else ""), work)

    @router.post("/jobs/{name}/resume")
    async def resume(request: Request, name: JobName, body: Choice | None = None) -> Job:
        choice = body if body and body != Choice() else None
        job = await site.job(name)
        asked = who(request).asks("resume", name, _resumed(choice))
        return await done(asked, lambda: _resume(gateway, job, choice))

    @router.post("/jobs/{name}/stop")
    async def stop(request: Request, name: JobName) -> Job:
        await site.job(name)
        return await done(who(request).asks("stop", name), lambda: _stop(gateway, name))

    @router.post("/jobs/{name}/move")
    async def move(request: Request, name: JobName, body: MoveBody) -> Outcome:
        job = await site.job(name)
        reason = f"off {body.machine} ({body.source.value}) {body.reason}".strip()
        asked = who(request, body.by).asks("move", name, reason)
        return await done(asked, lambda: _move(gateway, job, body))

    @router.post("/jobs/{name}/update")
    async def update(request: Request, name: JobName, body: Update) -> Outcome:
        job = await site.job(name)
        reason = f"code {body.version} ({body.when}) {body.note}".strip()
        asked = who(request, body.by).asks("update", name, reason)
        return await done(asked, lambda: _update(gateway, job, body))

    @router.post("/jobs/{name}/scale")
    async def scale(request: Request, name: JobName, body: Scale) -> Outcome:
        job = await site.job(name)
        asked = who(request, body.by).asks("scale", name, f"{body.machines} machines {body.note}".strip())
        return await done(asked, lambda: gateway.sizes.ask(job, body.machines, body.by, body.note))

    @router.post("/jobs/{name}/roles/{role}/scale")
    async def scale_role(request: Request, name: JobName, role: RoleName, body: ScaleRole) -> Job:
        job = await site.job(name)
        reason = f"{role}: {body.replicas} replicas {body.note}".strip()
        asked = who(request, body.by).asks("scale", name, reason)
        return await done(asked, lambda: gateway.roles.scale(job, role, body.replicas))

    return router


def _describe(result: object) -> str:
    if isinstance(result, Outcome):
        return describe(result)
    return f"now {result.state.value}, epoch {result.epoch}" if isinstance(result, Job) else ""


async def _resume(gateway: Gateway, job: Job, choice: Choice | None) -> Job:
    site, name = gateway.site, job.name
    await _must_be_idle(gateway, job)
    if job.state in (JobState.RUNNING, JobState.DONE):
        raise RefusedError(f"job {name} is {job.state}: there is nothing to resume")
    if job.state is JobState.PAUSED and choice is None and await gateway.on_hold.end(job):
        return await site.job(name)  # the playbook of what came meanwhile starts it
    if job.state is JobState.PAUSED and any(site.fleet.runs(job)):
        if choice is not None:
            raise RefusedError(
                f"job {name} holds at a step boundary with its state in its ranks: stop it first "
                f"(`holdfast stop {name}`), then choose what it starts from"
            )
        await gateway.acts.hold(name, None)
    else:
        await seat(site, job)
        try:
            await start(gateway, name, _resumed(choice), choice)
        except UnavailableError as error:
            raise UnavailableError(_unanswered(await site.job(name), site.fleet.machines, error)) from error
        await asyncio.to_thread(_end_waits, gateway, name)
    return await site.job(name)


def _end_waits(gateway: Gateway, name: str) -> None:
    """End the waits of a job that a person had started (blocking): its incidents say no more that it stands."""
    ledger = gateway.site.ledger
    for wait in ledger.waits():
        if wait.job == name and not wait.runs_on:
            ledger.end_wait(wait.incident_id)
            summary = waits.resumed(ledger.incident(wait.incident_id).summary, ledger.job(name).epoch)
            ledger.set_incident(wait.incident_id, summary=summary)


def _unanswered(job: Job, machines: Mapping[str, Machine], error: UnavailableError) -> str:
    """Return the problem by its machine's name, with the way out: one whose agent is dead starts nothing."""
    for name in job.machines:
        if name in machines and error.address and error.address == machines[name].address:
            return (
                f"machine {name} of job {job.name} does not answer ({error}): `holdfast evict {name} --reason WHY` "
                f"takes it out, then `holdfast resume {job.name}` starts on a standby in its place"
            )
    return str(error)


async def _stop(gateway: Gateway, name: str) -> Job:
    ledger = gateway.site.ledger
    await gateway.acts.stop(name)
    for incident in await asyncio.to_thread(ledger.incidents, name, IncidentState.OPEN):
        with contextlib.suppress(StaleError):  # its playbook has just ended it: that stays
            await asyncio.to_thread(
                ledger.end_incident,
                incident.id,
                IncidentState.DISMISSED,
                WAS_STOPPED,
                gateway.site.clock.now(),
            )
    return await gateway.site.job(name)


def _resumed(choice: Choice | None) -> str:
    if choice is None:
        return "resumed"
    return (
        "resumed manually from zero" if choice.from_scratch else f"resumed manually from step {choice.step}"
    )


async def _must_be_idle(gateway: Gateway, job: Job) -> None:
    """Check that no playbook works on the job.

    Raises:
        RefusedError: one does; it decides when ranks run.
    """
    acting = await asyncio.to_thread(gateway.site.ledger.acting, job.name)
    if acting:
        raise RefusedError(
            f"incident {acting.id} of job {job.name} is being worked on: wait until it is closed"
        )


async def _move(gateway: Gateway, job: Job, wanted: MoveBody) -> Outcome:
    now = gateway.site.clock.now()
    there = gateway.site.fleet.machines.get(wanted.machine)
    if there is not None and there.role and there.job == job.name:
        raise RefusedError(
            f"machine {wanted.machine} carries replicas of role {there.role} and no ranks: `holdfast evict "
            f"{wanted.machine}` has them leave it"
        )
    if wanted.machine not in job.machines:
        serving = ", ".join(job.machines) or "none"
        raise RefusedError(
            f"machine {wanted.machine} does not serve job {job.name}: its machines are {serving}"
        )
    if job.state is not JobState.RUNNING:
        raise RefusedError(f"job {job.name} is {job.state}: only a running job is moved")
    if wanted.to:
        known = await gateway.site.machine(wanted.to)
        if known.state is not MachineState.STANDBY:
            raise RefusedError(f"machine {wanted.to} is {known.state}, not a standby: it cannot take over")
    deadline = {} if wanted.deadline_s is None else {"deadline_at": now + wanted.deadline_s}
    alert = Alert(
        kind=AlertKind.PLANNED_MOVE,
        job=job.name,
        machine=wanted.machine,
        at=now,
        fingerprint=f"planned_move:{wanted.machine}:{now:.6f}",
        evidence={
            "source": wanted.source.value,
            "text": wanted.reason,
            "by": wanted.by,
            "to": wanted.to,
            **deadline,
        },
    )
    return await gateway.correlator.accept(alert)


async def _update(gateway: Gateway, job: Job, update: Update) -> Outcome:
    ledger, now = gateway.site.ledger, gateway.site.clock.now()
    if job.state is JobState.DONE:
        raise RefusedError(f"job {job.name} is done: submit it again to run other code")
    key = f"{job.name}/code/{update.version}.tar.gz"
    await asyncio.to_thread(ledger.add_version, job.name, update.version, key, update.note, update.by)
    acting = await asyncio.to_thread(ledger.acting, job.name)
    at_once = update.when == "now" and job.state in (JobState.RUNNING, JobState.RECOVERING)
    if not at_once or acting:
        # A restart that comes first takes it along.
        await asyncio.to_thread(ledger.set_pending_version, job.name, update.version)
    if not at_once:
        return Outcome(outcome=What.PENDING, message=f"the next start of job {job.name} takes it along")
    alert = Alert(
        kind=AlertKind.CODE_UPDATE,
        job=job.name,
        at=now,
        fingerprint=f"code_update:{job.name}:{update.version}:{now:.6f}",
        evidence={"version": update.version, "when": "now", "text": update.note, "by": update.by},
    )
    return await gateway.correlator.accept(alert)

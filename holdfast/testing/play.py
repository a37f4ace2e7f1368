"""Play one scenario: a real gateway and ledger, real policies and steps, scripted agents; no Prefect, no waiting.

The flows' steps are run as plain functions (a Prefect task's ``fn``): what Prefect adds is tested end to end.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import patch

from holdfast.deployments.gateway.api.approvals import asked
from holdfast.deployments.gateway.runs.flow_runs import RunPhase
from holdfast.models.alert import Alert, AlertKind, Classification, Incident, IncidentClass, IncidentState
from holdfast.models.history import Action, ActionState
from holdfast.models.job import Job, JobSpec, JobState, Parallelism
from holdfast.models.machine import MachineState
from holdfast.models.roles import RoleSpec
from holdfast.plugins.policy import ENTRY_FILE
from holdfast.policies.config.policy import Policy
from holdfast.policies.config.policy_file import PolicyFile, parse
from holdfast.tasks import approve, context, plain, services
from holdfast.tasks.playbook import Playbook
from holdfast.tasks.recovery_context import Request
from holdfast.testing.gateway_kit import JOB, Kit, start_epoch
from holdfast.testing.scenario import Scenario, Setup, Signal
from holdfast.testing.scripted_context import ScriptedContext
from holdfast.testing.send import send
from holdfast.testing.world import World

POLICY = "diagnose: {slow_interval_s: 0}\n"
ROLE = "rollout"
ROUNDS = 40
LONGEST_S = 180.0


@dataclass
class Played:
    """The result of a scenario."""

    incidents: list[Incident]
    actions: list[Action]
    evicted: dict[str, str]
    """Machine -> scope."""
    job: Job
    outcomes: list[str] = field(default_factory=list)
    """The gateway's answer to each signal."""
    answers: list[str] = field(default_factory=list)
    """The gateway's answers to people who acted while a playbook ran."""
    errors: list[Exception] = field(default_factory=list)
    """Exceptions of failed playbook runs."""
    commands: list[tuple[str, str]] = field(default_factory=list)
    """(command, machine) sent to agents, in order."""
    restored: tuple[int, ...] = ()
    """Step that each new epoch began with, in order."""
    suspect: tuple[int, ...] = ()
    """Checkpoints in S3 that the ledger holds for suspect, oldest first."""
    opened_after_s: float = 0.0
    """Time on the scenario's clock from the first signal of the incident to its being open."""
    took_s: float = 0.0
    """Real time from the first signal to the end of the playbook."""

    @property
    def kinds(self) -> list[str]:
        """Kinds of actions in the order in which they began; checks with their tier."""
        return [a.key.rpartition(":")[0] if a.kind == "check" else a.kind for a in self.actions]


@contextlib.contextmanager
def without_prefect() -> Iterator[None]:
    """Run tasks as plain functions; nothing is published, and no loop waits."""
    with (
        plain.without_prefect(),
        patch.object(approve, "_AGAIN_S", 0.0),
        patch.object(services, "_AGAIN_S", 0.0),
    ):
        yield


async def play(scenario: Scenario, folder: Path, playbooks: Sequence[Playbook] = ()) -> Played:
    """Set the stage, send the signals, run what the gateway starts until all is quiet.

    Args:
        scenario: what happens.
        folder: an empty one, for the ledger.
        playbooks: of other packages; their entries are the ``policy.yaml`` of those packages.
    """
    site = _Site(folder / "policy.yaml", _entries(playbooks))
    own = {playbook.fn.__name__: playbook for playbook in playbooks}
    kit = Kit(folder, policy=site.policy(scenario.setup.policy))
    try:
        with without_prefect():
            async with asyncio.timeout(LONGEST_S):
                return await _play(scenario, kit, own, site)
    finally:
        context.use(None)
        await kit.close()


@dataclass
class _Site:
    """The policy file, and the entries that packages of playbooks add to it."""

    file: Path
    entries: list[PolicyFile]

    def policy(self, text: str) -> Policy:
        """Write the policy file, and load it."""
        self.file.write_text(POLICY + text)
        return Policy.load(self.file, self.entries)


def _entries(playbooks: Sequence[Playbook]) -> list[PolicyFile]:
    packages = dict.fromkeys(playbook.fn.__module__.partition(".")[0] for playbook in playbooks)
    folders = [
        Path(sys.modules[name].__path__[0]) for name in packages if hasattr(sys.modules[name], "__path__")
    ]
    return [parse(folder / ENTRY_FILE) for folder in folders if (folder / ENTRY_FILE).is_file()]


async def _play(scenario: Scenario, kit: Kit, own: Mapping[str, Playbook], site: _Site) -> Played:
    world = await stage(scenario, kit)
    before = kit.ledger.job(JOB)
    known = {incident.id for incident in kit.incidents()}
    world.began_at, began = kit.clock.now(), time.perf_counter()
    outcomes: list[str] = []
    asked_for = [each for each in scenario.signals if each.while_asked]
    cast = _Cast(scenario, own, site, before, asked_for, world, outcomes)
    cast.sent.set()
    for signal in scenario.signals:
        if signal.while_asked:
            continue
        if signal.after_rest:
            await _until_quiet(cast, kit)
            # Playbooks take no time here, so the reconciler never saw these open.
            for ended in (one for one in kit.incidents() if one.closed_at is not None):
                kit.gateway.correlator.memory.closed(ended.id, ended.closed_at or 0.0)
        kit.clock.advance(signal.after_s)
        vars(world).update(_sets(signal.becomes))
        if signal.reached:
            _reach(kit, world, signal.reached)
        outcomes += await _send(kit, cast, signal)
    await _until_quiet(cast, kit)
    took_s = time.perf_counter() - began
    incidents = [incident for incident in kit.incidents() if incident.id not in known]
    return Played(
        incidents=incidents,
        actions=[
            action
            for incident in incidents
            for action in kit.ledger.actions(incident.id)
            if action.kind not in ("attempt",) and action.state is ActionState.DONE
        ],
        evicted={name: scope.value for name, scope in world.evicted},
        job=kit.ledger.job(JOB),
        outcomes=outcomes,
        answers=world.answers_to_people,
        errors=kit.errors,
        commands=world.commands,
        restored=tuple(e.start_step for e in kit.ledger.epochs(JOB) if e.epoch > before.epoch),
        suspect=tuple(sorted(each.step for each in kit.ledger.checkpoints(JOB) if each.suspect)),
        opened_after_s=incidents[0].opened_at - incidents[0].detected_at if incidents else 0.0,
        took_s=took_s,
    )


async def stage(scenario: Scenario, kit: Kit) -> World:
    """Bring a gateway and its scripted machines to where the scenario begins; return the machines' world."""
    setup, ledger = scenario.setup, kit.ledger
    for number in range(setup.machines + setup.own_machines + setup.standbys):
        await kit.register(f"m{number}")
    spec = JobSpec(
        name=JOB,
        script="train.py",
        machines=setup.machines,
        elastic=setup.elastic,
        ranks_per_machine=setup.ranks,
        parallelism=Parallelism(tp=setup.tp, pp=setup.pp),
        mode=setup.mode,
        skip_bad_batches=setup.skip_bad_batches,
        roles=_roles(setup),
    )
    first = "v0" if setup.other_code else "v1"
    ledger.add_job(spec, first)
    ledger.add_version(JOB, first, "key", "first")
    claimed = ledger.claim_standbys(JOB, setup.machines)
    ledger.set_job(JOB, machines=[machine.name for machine in claimed], state=JobState.RUNNING)
    ledger.claim_standbys(JOB, setup.own_machines, role=ROLE)
    start_epoch(ledger, JOB)
    kit.clock.advance(3600)
    if setup.resubmitted:
        _past(scenario, kit)
        _submit_again(kit, spec, [machine.name for machine in claimed], other_code=setup.other_code)
    if setup.code_changed_s_ago is not None:
        kit.clock.advance(3600)
        # Code with which it never trained would be no way back.
        ledger.mark(JOB, ledger.job(JOB).epoch, 1, kit.clock.now())
        ledger.add_version(JOB, "v2", "key2", "second")
        ledger.set_job(JOB, code_version="v2")
        start_epoch(ledger, JOB)
        kit.clock.advance(setup.code_changed_s_ago)
    if not setup.resubmitted:
        _past(scenario, kit)
    if setup.resumed:
        start_epoch(ledger, JOB)
    if setup.reached:
        ledger.mark(JOB, ledger.job(JOB).epoch, setup.reached, kit.clock.now())
    if setup.saved:
        ledger.note_saved(JOB, ledger.job(JOB).epoch)
    if setup.replaced:
        ledger.set_machine(setup.replaced, state=MachineState.CORDONED, job=None)
        (new,) = ledger.claim_standbys(JOB, 1)
        machines = [new.name if name == setup.replaced else name for name in ledger.job(JOB).machines]
        ledger.set_job(JOB, machines=machines)
    ledger.set_job(JOB, state=setup.state)
    # Its own copy: what happens is struck off there, and a scenario may be played again.
    world = World(kit.clock, ledger, JOB, **_sets(copy.deepcopy(scenario.world)))
    world.first_machines, world.first_epoch = ledger.job(JOB).machines, ledger.job(JOB).epoch
    for step in world.in_s3:
        ledger.record_checkpoint(world.checkpoint(step))
    kit.prober.dead |= world.dead
    kit.prober.slow |= world.silent
    await kit.gateway.site.refresh()
    services = ScriptedContext(kit, world, kit.gateway.site.policy)
    context.use(services)
    kit.acts.services = services if setup.head_start else None
    return world


def _submit_again(kit: Kit, spec: JobSpec, machines: Sequence[str], *, other_code: bool) -> None:
    ledger = kit.ledger
    ledger.set_job(JOB, state=JobState.STOPPED)
    if other_code:
        ledger.mark(JOB, ledger.job(JOB).epoch, 1, kit.clock.now())
        ledger.add_version(JOB, "v1", "key1", "submitted again")
    ledger.add_job(spec, "v1")
    ledger.set_job(JOB, machines=machines, state=JobState.RUNNING)
    start_epoch(ledger, JOB)


def _roles(setup: Setup) -> dict[str, RoleSpec]:
    own = setup.own_machines
    return {ROLE: RoleSpec(script="rollout.py", replicas=own, own_machines=own)} if own else {}


def _reach(kit: Kit, world: World, step: int) -> None:
    job = kit.ledger.job(JOB)
    kit.ledger.mark(JOB, job.epoch, step, kit.clock.now())
    world.step, world.memory_epoch, world.first_machines = step, job.epoch, job.machines


def _sets(world: dict[str, Any]) -> dict[str, Any]:
    return world | {name: set(world[name]) for name in ("dead", "silent") if name in world}


def _past(scenario: Scenario, kit: Kit) -> None:
    """Record earlier incidents, as the ledger would have them."""
    ledger, setup = kit.ledger, scenario.setup
    for machine, count in setup.offences.items():
        for _ in range(count):
            past = _incident(kit, IncidentClass.MACHINE_FAULT)
            ledger.begin(past.id, 1, f"evict:{machine}", "evict", {})
            ledger.finish(past.id, f"evict:{machine}")
            ledger.set_incident(past.id, state=IncidentState.DISMISSED)
    for rung in setup.crashed_before:
        past = _incident(kit, IncidentClass.JOB_CRASH)
        ledger.begin(past.id, 1, "rung:e1", "rung", {})
        ledger.finish(past.id, "rung:e1", {"rung": rung, "reasons": []})
        ledger.set_incident(past.id, state=IncidentState.RECOVERED)
        kit.clock.advance(60)


def _incident(kit: Kit, incident_class: IncidentClass) -> Incident:
    job = kit.ledger.job(JOB)
    found = Classification(incident_class=incident_class, confidence=1.0, reasons=("earlier",))
    return kit.ledger.open_incident(JOB, found, job.epoch, [], kit.clock.now())


async def _send(kit: Kit, cast: _Cast, signal: Signal) -> list[str]:
    if signal.restarts or signal.policy is not None:
        await _restart(kit, cast, signal.policy)
    return await send(kit, signal, cast.job)


async def _restart(kit: Kit, cast: _Cast, policy: str | None) -> None:
    """Start the gateway again, with another policy file unless ``policy`` is None; playbooks run under it too."""
    if policy is not None:
        kit.policy = cast.site.policy(policy)
    await kit.restart()
    context.use(ScriptedContext(kit, cast.world, kit.gateway.site.policy))


async def _report_lost(kit: Kit, world: World) -> None:
    """Report machines that died while a playbook ran, as the gateway finds them a moment later."""
    for name in world.lost:
        machine = kit.ledger.machine(name)
        found = Alert(
            kind=AlertKind.MACHINE_LOST, machine=name, incarnation=machine.incarnation, at=kit.clock.now()
        )
        await kit.http.post("/v1/alerts", json=found.model_dump(mode="json"))
        await kit.settled()
    world.lost.clear()


@dataclass
class _Cast:
    """Players beside the gateway: the flows of other packages, and people."""

    scenario: Scenario
    own: Mapping[str, Playbook]
    site: _Site
    job: Job
    """As it was before the first signal."""
    while_asked: list[Signal]
    """Signals to be sent when a playbook asks a person."""
    world: World
    outcomes: list[str]
    """The gateway's answer to each signal."""
    sent: asyncio.Event = field(default_factory=asyncio.Event)
    """Set while none of them is under way."""


async def _until_quiet(cast: _Cast, kit: Kit) -> None:
    """Let alerts settle, and run each playbook that was started, with the reconciler's rounds between."""
    ran = kit.ran
    for _ in range(ROUNDS):
        await kit.gateway.correlator.settle()
        await kit.gateway.waiting.tick()
        await kit.gateway.on_hold.tick()
        await kit.settled()
        due = [key for key in kit.runs.created if key not in ran]
        for key in due:
            ran.add(key)
            await _run(cast, kit, key)
            await _report_lost(kit, cast.world)
        open_ones = kit.ledger.incidents(state=IncidentState.OPEN)
        if not due and not open_ones and not kit.gateway.correlator.settles:
            return
        # What settles may do so for minutes (a switch is named after two rounds).
        await kit.tick(1.0 if due or open_ones else 5.0)
    raise AssertionError(f"not quiet after {ROUNDS} rounds: {kit.incidents()}")


async def _run(cast: _Cast, kit: Kit, key: str) -> None:
    """Run the playbook of one attempt, as the worker would; its question may be answered meanwhile."""
    incident_id, _, attempt = key.partition("#")
    name = kit.ledger.incident(incident_id).incident_class.value
    flow = cast.own.get(name) or getattr(import_module(f"holdfast.flows.{name}"), name)
    async with _answering(cast, kit, incident_id):
        try:
            await flow.fn(Request(id=incident_id, attempt=int(attempt)))
        except Exception as error:  # the run failed: the reconciler starts the next attempt
            kit.errors.append(error)
            kit.runs.set(key, RunPhase.FAILED)
            return
    kit.runs.set(key, RunPhase.ENDED)


@contextlib.asynccontextmanager
async def _answering(cast: _Cast, kit: Kit, incident_id: str) -> AsyncIterator[None]:
    async def question(after: str) -> str:
        while (action := asked(kit.ledger.actions(incident_id))) is None or action.key == after:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        return action.key

    async def answer() -> None:
        key = ""
        while True:
            key = await question(key)
            cast.sent.clear()
            while cast.while_asked:
                signal = cast.while_asked.pop(0)
                kit.clock.advance(signal.after_s)
                vars(cast.world).update(_sets(signal.becomes))
                cast.outcomes += await _send(kit, cast, signal)
                await kit.gateway.correlator.settle()
            cast.sent.set()
            if kit.ledger.incident(incident_id).state is not IncidentState.OPEN:
                return
            if cast.scenario.answer is None:
                kit.clock.advance(kit.gateway.site.policy.approval.deadline_s + 1)
            else:
                await kit.gateway.approvals.answer(
                    incident_id, cast.scenario.answer == "approve", "ann", "looked at it"
                )

    task = asyncio.create_task(answer())
    try:
        yield
    finally:
        # The answer to a signal may be that this very run is over: the gateway's work on it goes on.
        await cast.sent.wait()
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

"""The site that is played: gateways, workers, machines, one job; and what everybody does is written down."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import httpx

from holdfast.agent.daemon import Agent
from holdfast.clock import Clock
from holdfast.deployments.gateway.app import create_app
from holdfast.deployments.gateway.detectors.probe import HttpProber
from holdfast.deployments.gateway.fleet.acts import Operations
from holdfast.deployments.gateway.metrics import Metrics
from holdfast.deployments.gateway.runs.flow_runs import PlaybookRun, RunPhase, Suspended, idempotency_key
from holdfast.drivers.base import Supplied, require_unit
from holdfast.errors import HoldfastError, UnavailableError, UnknownError
from holdfast.models import agent as wire
from holdfast.models.alert import Incident, IncidentState
from holdfast.models.incarnation import unit_of
from holdfast.models.job import JobSpec, JobState
from holdfast.models.machine import Scope
from holdfast.operations.context import Context
from holdfast.policies.config.policy import Policy
from holdfast.secret import Keys
from holdfast.settings import Settings
from holdfast.storage.ledger import Ledger
from holdfast.tasks import context as contexts
from holdfast.tasks.recovery_context import Request
from tests.nemesis import replicas
from tests.nemesis.faults import GATEWAYS
from tests.nemesis.history import History
from tests.nemesis.ledger import Database, ProcessLedger
from tests.nemesis.machines import Host
from tests.nemesis.network import Client, Network
from tests.nemesis.scheduler import WALL, Process, Scheduler
from tests.nemesis.training import Group, RankProcess

JOB = "gpt"
MACHINES, STANDBYS, RANKS = 3, 2, 2
HEARTBEAT_S = 1.0
POLICY = """
gateway: {silent_after_s: 12, pending_after_s: 8, offline_after_s: 5}
standby: {wait_s: 20}
recovery: {first_step_timeout_s: 20}
restore: {wait_s: 10, from_scratch: allow}
"""


@functools.cache
def _policy() -> Policy:
    import tempfile  # noqa: PLC0415

    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        file.write(POLICY)
        file.flush()
        return Policy.load(Path(file.name))


class HostClock(Clock):
    """The clocks of a process's host."""

    def __init__(self, site: Site, host: str) -> None:
        self._site, self._host = site, host

    def now(self) -> float:
        """The wall clock, which somebody may have set."""
        return self._site.wall(self._host)

    def monotonic(self) -> float:
        """The one that nobody sets."""
        return self._site.scheduler.now

    async def sleep(self, seconds: float) -> None:
        """In virtual time."""
        await asyncio.sleep(seconds)


class Services(Context):
    """What steps use in one process."""

    def __init__(self, site: Site, process: Process, ledger: Ledger) -> None:
        super().__init__(site.settings, HostClock(site, process.host), ledger)
        self.__dict__ |= {"policy": site.policy, "driver": Driver(site, process), "secret": site.secret}
        self.__dict__["store"] = Store()
        self._client = Client(site.network, process)

    @property
    def http(self) -> Any:
        """The process's way out."""
        return self._client


class Store:
    """An object store without objects."""

    bucket = "holdfast"

    def __getattr__(self, name: str) -> Callable[..., list[str]]:
        return lambda *_args, **_named: []

    def exists(self, key: str) -> bool:
        """Nothing does."""
        return False


class Driver:
    """The engine that supplies the machines, as one process asks it."""

    name = "simulated"

    def __init__(self, site: Site, process: Process) -> None:
        self._site, self._process = site, process

    def machines(self) -> list[Supplied]:
        """As the engine sees them."""
        self._ask()
        return [
            Supplied(name=host.name, alive=host.up and not host.forsaken)
            for host in self._site.hosts.values()
            if host.units
        ]

    def evict(self, machine: str, scope: Scope, reason: str, incarnation: str = "") -> None:
        """Power off, or out of the engine's books where it cannot be reached."""
        self._ask()
        host = self._site.hosts.get(machine)
        if host is None:
            raise UnknownError(f"no machine {machine}")
        self._site.evicting(self._process, host, incarnation, reason)
        require_unit(machine, incarnation, host.unit)
        self._site.evicted(host, incarnation)
        if self._site.network.is_open("engine", machine):
            host.die("evicted")
        else:
            host.forsaken = True
        self._ask()

    def provision(self, n: int, group: str = "") -> list[str]:
        """New machines."""
        self._ask()
        names = [self._site.add_machine(after_s=1.5) for _ in range(n)]
        self._site.note("provision", machines=",".join(names))
        return names

    def withdraw(self) -> None:
        """There is nothing to take back."""

    def release(self, machine: str) -> None:
        """It starts anew."""
        self._ask()
        self._site.hosts[machine].boot(1.0)

    def retire(self, machine: str) -> None:
        """Give it back."""
        self._ask()
        self._site.hosts[machine].die("retired")

    def _ask(self) -> None:
        self._site.gate(self._process)
        self._site.scheduler.block(0.02 + 0.1 * self._site.scheduler.random.random())


class Prefect:
    """Prefect's server, and the worker that starts a process for each run."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self.away = False
        self.runs: dict[str, PlaybookRun] = {}
        self.attempts: dict[str, Process] = {}

    def set(self, key: str, phase: RunPhase, alive: bool | None = None) -> None:
        """A run entered a state."""
        now = self._site.wall("prefect")
        self.runs[key] = PlaybookRun(id=key, phase=phase, state=phase.value, since=now, alive=alive)

    def launch(self, incident: Incident, key: str) -> None:
        """Start the process."""
        site = self._site
        process = Process(site.scheduler, f"run {key}", "worker")
        ledger = site.ledger_of(process)
        process.context = Services(site, process, ledger)
        self.attempts[key] = process
        self.set(key, RunPhase.RUNNING)
        site.note("run", key=key, playbook=incident.incident_class.value)
        name = incident.incident_class.value
        flow = getattr(import_module(f"holdfast.flows.{name}"), name)

        async def run() -> None:
            try:
                await flow.fn(Request(id=incident.id, attempt=incident.attempt))
            except Exception as error:
                site.note("run-failed", key=key, error=f"{type(error).__name__}: {error}"[:150])
                self.set(key, RunPhase.FAILED)
            else:
                self.set(key, RunPhase.ENDED)
            process.kill()

        def died() -> None:
            # A worker on the same host reports it soon; one that died too never does.
            if self.runs[key].phase is RunPhase.RUNNING and site.scheduler.random.random() < 0.5:
                site.scheduler.after(1.0, lambda: self.set(key, RunPhase.FAILED))

        process.on_kill.append(died)
        process.start(run())


class Runs:
    """Prefect as one gateway sees it."""

    def __init__(self, site: Site) -> None:
        self._site, self._prefect = site, site.prefect

    async def _ask(self) -> None:
        await asyncio.sleep(0.02 * self._site.scheduler.random.random())
        if self._prefect.away:
            raise UnavailableError("Prefect's API: ConnectError")

    async def create(self, incident: Incident) -> str:
        """Once per key."""
        await self._ask()
        key = idempotency_key(incident)
        if key not in self._prefect.runs:
            self._prefect.set(key, RunPhase.WAITING)
            self._site.scheduler.after(
                0.1 + 0.3 * self._site.scheduler.random.random(), lambda: self._prefect.launch(incident, key)
            )
        return key

    async def start(self, deployment: str, parameters: dict[str, object], key: str) -> None:
        """No other deployments."""
        await self._ask()

    async def read(self, run_id: str) -> PlaybookRun | None:
        """Its state."""
        if not run_id.startswith("offline"):
            await self._ask()
        found = self._prefect.runs.get(run_id)
        if found is not None and run_id.startswith("offline"):
            process = self._prefect.attempts[run_id]
            return found.model_copy(update={"alive": process.alive})
        return found

    async def ping(self) -> tuple[str, ...]:
        """Whether it answers; it has all deployments."""
        await self._ask()
        return ()

    async def resume(self, run_id: str, answer: dict[str, object]) -> None:
        """No run is suspended."""

    async def suspended(self) -> tuple[Suspended, ...]:
        """None is."""
        return ()

    async def cancel(self, run_id: str, why: str) -> bool:
        """None is suspended."""
        return False

    async def offline(self, incident: Incident) -> str:
        """A process of its own, without Prefect."""
        key = f"offline:{idempotency_key(incident)}"
        if key not in self._prefect.runs:
            self._prefect.launch(incident, key)
        return key


class Gateway:
    """One gateway's host: its process, started again when it was killed."""

    def __init__(self, site: Site, host: str) -> None:
        self._site, self.host = site, host
        self.process: Process | None = None
        self.app: Any = None

    @property
    def is_sure(self) -> bool:
        """It would act now."""
        if self.process is None or not self.process.alive or self.process.stopped or self.app is None:
            return False
        try:
            self.app.state.gateway.may_act()
        except UnavailableError:
            return False
        return True

    def start(self) -> None:
        """Start it, unless it runs."""
        if self.process is not None and self.process.alive:
            return
        self.app = None
        self.process = process = Process(self._site.scheduler, f"gateway {self.host}", self.host)
        self._site.note("gateway", on=self.host)
        process.start(self._serve(process))

    async def _serve(self, process: Process) -> None:
        site = self._site
        ledger = site.ledger_of(process)
        process.context = Services(site, process, ledger)
        metrics = Metrics()
        prober = HttpProber(process.context.http, site.policy.gateway, metrics, secret=site.secret)
        self.app = app = create_app(
            site.settings.model_copy(update={"host": self.host, "port": 80}),
            ledger,
            HostClock(site, self.host),
            Runs(site),
            prober=prober,
            acts=Operations(process.context),
            secret=site.secret,
            policy=site.policy,
            metrics=metrics,
            leader=f"{self.host}:80",
        )
        try:
            async with app.router.lifespan_context(app):
                site.network.listen(f"{self.host}:80", process, app)
                await asyncio.get_running_loop().create_future()
        except HoldfastError as error:
            # It ends, and whoever supervises it starts it again.
            site.note("gateway-exit", on=self.host, error=str(error)[:100])
            process.kill()
            site.scheduler.after(1.0, self.start)


@dataclass(frozen=True)
class Shape:
    """The kind of job that is played."""

    roles: bool = False
    """It has some beside its ranks."""
    elastic: bool = False
    """It trains on two to four machines."""
    kept: bool = False
    """Its ranks keep their processes where they may."""

    def spec(self) -> JobSpec:
        """Return its specification."""
        told: dict[str, Any] = {"name": JOB, "script": "train.py", "ranks_per_machine": RANKS}
        told |= {"machines": {"min": 2, "want": MACHINES, "max": 4} if self.elastic else MACHINES}
        told |= {"roles": replicas.ROLES} if self.roles else {}
        return JobSpec.model_validate(told)


PLAIN = Shape()


class Site:
    """Everything, and the observers of it."""

    def __init__(self, seed: int | str, shape: Shape = PLAIN) -> None:
        self.seed = seed
        self.shape = shape
        self.scheduler = Scheduler(seed)
        self.history = History()
        self.network = Network(self.scheduler)
        self.database = Database()
        self.policy = _policy()
        self.secret = Keys(given="the-secret")
        self.settings = Settings(
            home=Path("/sim"),
            heartbeat_s=HEARTBEAT_S,
            gateway_url=",".join(f"http://{g}:80" for g in GATEWAYS),
        )
        self.clock_offsets: dict[str, float] = {}
        self.hosts: dict[str, Host] = {}
        self.controls: dict[str, Any] = {}
        """Runs and ranks, by the path of the control page."""
        self.prefect = Prefect(self)
        self.gateways = {name: Gateway(self, name) for name in GATEWAYS}
        self.groups: dict[tuple[str, int], Group] = {}
        self.gates: list[Callable[[Process], None]] = []
        self.violations: list[str] = []
        self.watchers: list[Any] = []
        self.machines_hit = False
        """Some fault was not of the control plane alone."""
        self.blamed: set[str] = set()
        """Machines with a fault of their own since they were started."""
        self.struck = 0
        self._pids = itertools.count(1000)
        self.random = random.Random(f"site {seed}")
        self.database.on_call = lambda process, _write: self.gate(process)
        self.scheduler.entered = lambda process: setattr(contexts, "_current", process.context)

    def open(self) -> None:
        """Power on; the job is submitted by hand."""
        self.database.fresh()
        for _ in range(MACHINES + STANDBYS):
            self.add_machine()
        for gateway in self.gateways.values():
            gateway.start()
        operator = Process(self.scheduler, "operator", "operator")
        self.eye = self.ledger_of(Process(self.scheduler, "eye", "eye"))
        operator.start(self._submit(operator))

    def gateway_that(self, leads: bool) -> str:
        """A gateway that leads, or one that does not."""
        return next((name for name, each in self.gateways.items() if each.is_sure is leads), GATEWAYS[0])

    def ask(
        self, path: str, gateways: Sequence[str] = GATEWAYS * 20, body: dict[str, Any] | None = None
    ) -> None:
        """A person asks gateways, one after the other, until one does it."""
        process = Process(self.scheduler, f"person {path}", "operator")
        process.start(self._ask(process, path, gateways, body))

    async def _ask(
        self, process: Process, path: str, gateways: Sequence[str], body: dict[str, Any] | None
    ) -> None:
        client = Client(self.network, process, 3.0)
        headers = {"Authorization": self.secret.header}
        for gateway in gateways:
            with contextlib.suppress(httpx.HTTPError):
                answer = await client.post(f"http://{gateway}:80{path}", headers=headers, json=body)
                self.note("person", asks=path, of=gateway, status=answer.status_code, said=answer.text[:120])
                if answer.status_code == 200:
                    return
            await asyncio.sleep(0.5)

    async def _submit(self, process: Process) -> None:
        client = Client(self.network, process, 30.0)
        spec = self.shape.spec()
        body = {"spec": spec.model_dump(mode="json"), "code_version": "v1"}
        headers = {"Authorization": self.secret.header}
        while True:
            for gateway in GATEWAYS:
                try:
                    answer = await client.post(f"http://{gateway}:80/v1/jobs", json=body, headers=headers)
                except httpx.HTTPError:
                    continue
                self.note("submit", status=answer.status_code, said=answer.text[:150])
                if answer.status_code == 200:
                    return
            await asyncio.sleep(0.3)

    @property
    def control_hosts(self) -> set[str]:
        """Where gateways and playbooks run, and the engine that supplies machines."""
        return {*self.gateways, "worker", "engine"}

    @property
    def everybody(self) -> set[str]:
        """All hosts."""
        return {*self.hosts, *self.control_hosts}

    def blame(self, machine: str) -> None:
        """It has a fault of its own."""
        self.blamed.add(machine)

    def note(self, kind: str, **what: Any) -> None:
        """Into the history, and to all who watch."""
        self.history.note(self.scheduler.now, kind, **what)

    def violated(self, invariant: str, why: str) -> None:
        """An invariant does not hold."""
        self.violations.append(f"{invariant}: {why}")
        self.note("VIOLATION", of=invariant, why=why)

    def wall(self, host: str) -> float:
        """The wall clock of a host."""
        return WALL + self.scheduler.now + self.clock_offsets.get(host, 0.0)

    def next_pid(self) -> int:
        """Of a new process."""
        return next(self._pids)

    def gate(self, process: Process) -> None:
        """A process is about to do something outside of itself: where faults strike."""
        for strike in list(self.gates):
            strike(process)

    def ledger_of(self, process: Process) -> Ledger:
        """The ledger as it reaches it."""
        return ProcessLedger(self.database, process, HostClock(self, process.host))

    def add_machine(self, after_s: float = 0.0) -> str:
        """One more; its name."""
        name = f"m{len(self.hosts)}"
        self.hosts[name] = Host(self, name)
        self.hosts[name].boot(after_s)
        return name

    def group(self, start: wire.Start) -> Group:
        """The ranks of an epoch."""
        key = start.job, start.epoch
        if key not in self.groups:
            self.groups[key] = Group(self, start.job, start.epoch, start.world_size, start.restore.step)
        return self.groups[key]

    # What is watched: each calls all watchers that have a method of that name.

    def started(self, process: RankProcess) -> None:
        """A rank was forked."""
        start = process.run.start
        self.note("rank-start", job=start.job, epoch=start.epoch, rank=process.rank, on=process.host.name)
        self._tell("started", process)

    def stepped(self, group: Group) -> None:
        """All ranks of an epoch made a step."""
        self.note("step", job=group.job, epoch=group.epoch, step=group.step)
        self._tell("stepped", group)

    def ended(self, process: RankProcess, code: int, why: str) -> None:
        """A rank is gone."""
        start = process.run.start
        if process.ahead:
            self.note("ahead-end", epoch=start.epoch, rank=process.rank, on=process.host.name, why=why)
            return
        self.note(
            "rank-end",
            job=start.job,
            epoch=start.epoch,
            rank=process.rank,
            on=process.host.name,
            code=code,
            why=why,
        )
        self._tell("ended", process, why)

    def replica_started(self, process: replicas.ReplicaProcess) -> None:
        """A replica was forked."""
        _, role, index, generation = process.key
        self.note("replica", role=role, index=index, generation=generation, on=process.host.name)
        self._tell("replica_started", process)

    def replica_ended(self, process: replicas.ReplicaProcess, why: str) -> None:
        """A replica is gone."""
        _, role, index, generation = process.key
        self.note("replica-end", role=role, index=index, generation=generation, on=process.host.name, why=why)

    def fenced(self, agent: Agent, command: wire.Fence, stopped: list[RankProcess]) -> None:
        """An agent took a fence, or forgot a job."""
        fence = agent.jobs.fences.get(command.job)
        self.note(
            "fence", on=agent.machine, epoch=command.epoch, stopped=[one.rank for one in stopped], fence=fence
        )
        self._tell("fenced", agent, command, stopped)

    def forgot(self, host: Host, job: str, before: tuple[int, int]) -> None:
        """A machine dropped all that it kept of a job."""
        after = self.common_step()
        self.note("forget", on=host.name, before=before, after=after)
        self._tell("forgot", host, job, before, after)

    def evicting(self, process: Process, host: Host, incarnation: str, reason: str) -> None:
        """A driver was told to."""
        self.note(
            "evict", by=process.name, machine=host.name, of=incarnation, now=host.unit, reason=reason[:100]
        )
        self._tell("evicting", process, host, incarnation, reason)

    def evicted(self, host: Host, incarnation: str) -> None:
        """It did so."""
        self._tell("evicted", host, incarnation)

    def _tell(self, what: str, *args: Any) -> None:
        for watcher in self.watchers:
            if method := getattr(watcher, what, None):
                method(*args)

    # What is true now, read past all faults.

    def look(self, read: Callable[[Ledger], Any]) -> Any:
        """What the database holds."""
        from tests.nemesis.ledger import _shared  # noqa: PLC0415

        return read(_shared())

    @property
    def quiet(self) -> bool:
        """The job runs as the ledger says, or has ended, and no incident is open."""
        return not self.unrest

    @property
    def unrest(self) -> str:
        """Why it is not quiet; empty: it is."""
        if self.look(lambda ledger: ledger.incidents(state=IncidentState.OPEN, evidence=False)):
            return "incidents are open"
        jobs = self.look(lambda ledger: ledger.jobs())
        if not jobs:
            return "there is no job"
        job = jobs[0]
        if job.state is not JobState.RUNNING:
            over = job.state in (JobState.FAILED, JobState.STOPPED, JobState.DONE)
            left = [process.key for host in self.hosts.values() for process in replicas.live(host)]
            return (
                f"replicas are left: {left}" if over and left else "" if over else f"the job is {job.state}"
            )
        group = self.groups.get((job.name, job.epoch))
        if group is None or len(group.alive) != job.spec.world_size or not group.steps_done:
            return "not all ranks of its epoch make steps"
        waiting = [one.rank for host in self.hosts.values() for one in host.ranks() if one.left]
        if waiting:
            return f"kept ranks {waiting} wait"
        places = self.look(lambda ledger: ledger.places(job.name))
        return replicas.settled(list(self.hosts.values()), places, job.spec.roles)

    def common_step(self) -> tuple[int, int]:
        """Return epoch and step of the newest state of which each rank's shard is on a machine that is up."""
        found: dict[tuple[int, int], set[int]] = {}
        sizes: dict[tuple[int, int], int] = {}
        for host in self.hosts.values():
            for shard in host.shards.values() if host.up else ():
                found.setdefault((shard.epoch, shard.step), set()).add(shard.rank)
                sizes[shard.epoch, shard.step] = shard.world_size
        whole = [which for which, ranks in found.items() if len(ranks) == sizes[which]]
        return max(whole, default=(0, 0))


__all__ = ["Site", "unit_of"]

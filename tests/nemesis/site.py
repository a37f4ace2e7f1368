"""The site that is played: gateways, workers, machines, one job; and the history of all their acts."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import httpx

from holdfast.agent.daemon import Agent
from holdfast.models import agent as wire
from holdfast.models.alert import IncidentState
from holdfast.models.job import JobState
from holdfast.policies.config.policy import Policy
from holdfast.secret import Keys
from holdfast.settings import Settings
from holdfast.storage.ledger import Ledger
from holdfast.tasks import context as contexts
from tests.nemesis import replicas
from tests.nemesis.faults import GATEWAYS
from tests.nemesis.gateways import Gateway
from tests.nemesis.history import History
from tests.nemesis.ledger import Database, ProcessLedger
from tests.nemesis.machines import Host
from tests.nemesis.network import Client, Network
from tests.nemesis.playbook_runs import Prefect
from tests.nemesis.scheduler import WALL, Process, Scheduler
from tests.nemesis.services import HostClock
from tests.nemesis.shape import MACHINES, PLAIN, STANDBYS, Shape
from tests.nemesis.training import Group, RankProcess

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
    def all_hosts(self) -> set[str]:
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
        self._notify("started", process)

    def stepped(self, group: Group) -> None:
        """All ranks of an epoch made a step."""
        self.note("step", job=group.job, epoch=group.epoch, step=group.step)
        self._notify("stepped", group)

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
        self._notify("ended", process, why)

    def replica_started(self, process: replicas.ReplicaProcess) -> None:
        """A replica was forked."""
        _, role, index, generation = process.key
        self.note("replica", role=role, index=index, generation=generation, on=process.host.name)
        self._notify("replica_started", process)

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
        self._notify("fenced", agent, command, stopped)

    def forgot(self, host: Host, job: str, before: tuple[int, int]) -> None:
        """A machine dropped all that it kept of a job."""
        after = self.common_step()
        self.note("forget", on=host.name, before=before, after=after)
        self._notify("forgot", host, job, before, after)

    def evicting(self, process: Process, host: Host, incarnation: str, reason: str) -> None:
        """Note an eviction that a driver was ordered."""
        self.note(
            "evict", by=process.name, machine=host.name, of=incarnation, now=host.unit, reason=reason[:100]
        )
        self._notify("evicting", process, host, incarnation, reason)

    def evicted(self, host: Host, incarnation: str) -> None:
        """It did so."""
        self._notify("evicted", host, incarnation)

    def _notify(self, what: str, *args: Any) -> None:
        for watcher in self.watchers:
            if method := getattr(watcher, what, None):
                method(*args)

    # What is true now, read past all faults.

    def look(self, read: Callable[[Ledger], Any]) -> Any:
        """Read the database past all faults."""
        from tests.nemesis.ledger import _shared  # noqa: PLC0415

        return read(_shared())

    @property
    def quiet(self) -> bool:
        """Whether the job runs as the ledger has it, or has ended, and no incident is open."""
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

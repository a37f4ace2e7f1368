"""The real agent over stand-ins for forks, shared memory and sockets."""

from __future__ import annotations

import asyncio
import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.agent.daemon import Agent
from holdfast.agent.diagnostics.warm_checks import Bench
from holdfast.agent.metrics import Metrics
from holdfast.agent.ranks.jobs import RunningJobs
from holdfast.agent.ranks.reactions import RunEvents, Watch
from holdfast.agent.ranks.run import Run
from holdfast.agent.roles.replica import Means
from holdfast.agent.roles.supervisor import Supervisor
from holdfast.agent.uplink.contact import Standing
from holdfast.agent.uplink.lease_watch import LeaseWatch
from holdfast.agent.uplink.parts import HeartbeatParts
from holdfast.agent.uplink.reporter import Reporter
from holdfast.models import agent as wire
from holdfast.models.alert import Finding
from tests.nemesis import replicas
from tests.nemesis.network import Client
from tests.nemesis.parts import Forks, Memory, Nothing, Supply
from tests.nemesis.runs import SimRun
from tests.nemesis.scheduler import Process
from tests.nemesis.training import RankProcess

if TYPE_CHECKING:
    from tests.nemesis.machines import Host


class SimAgent(Agent):
    """The real agent, put together from the real parts where they exist without a host."""

    def __init__(self, host: Host, process: Process) -> None:
        site = host.site
        self._host = host
        self.machine = host.name
        self.incarnation = f"{host.name}l{host.lives}@{host.unit}"
        self.secret = site.secret
        self.metrics, self._home = Metrics(), Path("/sim")
        self.folder = Path("/sim") / host.name
        self._settings = site.settings
        self.forks = Forks(host)  # type: ignore[assignment]
        self.memory = Memory(host)  # type: ignore[assignment]
        self.address = f"{host.name}:1"
        self._port = Nothing()  # type: ignore[assignment]
        self._port.address = f"{host.name}:2"
        self.standing = Standing(lambda: site.scheduler.now)
        client = Client(site.network, process, 3.0)
        self._parts = HeartbeatParts()
        self._cores = 8
        self._reporter = Reporter(
            ",".join(site.settings.gateways),
            site.secret,
            self.metrics,
            client,
            standing=self.standing,
            on_answer=self._on_answer,
        )
        prover: Any = Nothing()
        prover.why_not = "there is nothing to prove"
        nothing: Any = Nothing()
        self._watch = Watch(
            machine=self.machine,
            incarnation=self.incarnation,
            report=self._reporter.report,
            replicator=nothing,
            uploads=nothing,
            disk=nothing,
            metrics=self.metrics,
            prover=prover,
        )
        self._ranks = 2
        self._bench = Bench(self.forks.run)
        self._supply = Supply(host)  # type: ignore[assignment]
        self._carrier = self.forks  # type: ignore[assignment]
        self._inspector = self  # type: ignore[assignment]
        self.jobs = RunningJobs(
            forks=self.forks,
            memory=self.memory,
            supply=self._supply,
            metrics=self.metrics,
            host=host.name,
            make_run=self._make_run,
            make_ahead=functools.partial(self._make_run, ahead=True),
            events=lambda run: RunEvents(self._watch, run),
            on_exit=self._watch.exited,
            on_lost=self._watch.lost,
        )
        nowhere: Any = replicas.Nowhere()
        surroundings: tuple[Any, ...] = (
            self.forks,
            replicas.Remains(host),
            replicas.Scratch(),
            replicas.Files(host),
        )
        means = Means(host.name, nowhere, nowhere, *surroundings, self._reporter.hurry)
        self.roles = Supervisor(means, self._supply.code, self.jobs.live)
        self._vitals = wire.Vitals
        self._lease = LeaseWatch(
            self.standing,
            site.secret,
            probe_gateways=lambda patience_s: self._reporter.probe_gateways(self._heartbeat(), patience_s),
            runs=lambda: self.roles.running or any(run.running for run in self.jobs.runs.values()),
            stop=self._stop_cut_off,
        )

    def _make_run(self, start: wire.Start, ahead: bool = False) -> Run:
        limits = self._host.site.policy.detect.metrics
        run = SimRun(start, self.machine, self.folder, self.memory, limits, ahead=ahead)
        run.host = self._host
        return run

    async def live(self) -> int:
        """Until it ends by itself; its exit status."""
        ended = asyncio.Event()
        background = [asyncio.create_task(each) for each in (self._speak(), self._lease.run())]
        for task in background:
            task.add_done_callback(lambda _: ended.set())
        await ended.wait()
        return self._status(background)

    async def fence(self, command: wire.Fence) -> list[int]:
        """The real one, watched."""
        before = self._host.ranks()
        stopped = await super().fence(command)
        self._watched(command, before)
        return stopped

    def _watched(self, command: wire.Fence, before: list[RankProcess]) -> None:
        ended = [
            one for one in before if not one.alive and one.why == "agent" and one.run.start.job == command.job
        ]
        self._host.site.fenced(self, command, ended)

    async def forget(self, command: wire.Fence) -> None:
        """The real one, watched."""
        before = self._host.ranks()
        await super().forget(command)
        self._watched(command, before)

    async def start(self, command: wire.Start) -> list[wire.RankState]:
        """The real one, watched."""
        states = await super().start(command)
        self._host.site.note("start", on=self.machine, epoch=command.epoch, of=command.incarnation)
        return states

    async def mirror(self, command: wire.Mirror) -> None:
        """Each step that is saved from now on goes to one more machine."""
        self._check(command.incarnation)
        run = self.jobs.run(command.job, command.epoch)
        assert isinstance(run, SimRun)
        run.mirror = command.address.partition(":")[0], self._host.site.scheduler.now + command.keep_s

    async def diagnose(self, command: wire.Diagnose) -> list[Finding]:
        """This machine is in order."""
        self._check(command.incarnation)
        await asyncio.sleep(0.05)
        return [Finding(check=command.check, machine=self.machine, ok=True, peer=command.peer or None)]

    async def persist(self, command: wire.Persist) -> None:
        """There is no object store."""

    async def stacks(self, job: str, epoch: int) -> list[wire.StackDump]:
        """None can be had."""
        return []

    async def flight_records(self, job: str, epoch: int) -> list[wire.FlightRecord]:
        """None were written."""
        return []

    async def _clear(self) -> None:
        """A simulated agent leaves nothing behind."""

    async def self_check(self) -> list[Finding]:
        """Nothing is wrong."""
        return []

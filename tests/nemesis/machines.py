"""Machines: a host, its agent (the real one over stand-ins for forks, shared memory and sockets), and its ranks."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.agent import server
from holdfast.agent.daemon import EXIT_STALE, Agent
from holdfast.agent.metrics import Metrics
from holdfast.agent.ranks import survivors
from holdfast.agent.ranks.jobs import Jobs
from holdfast.agent.ranks.rank_main import RankOrder
from holdfast.agent.ranks.rank_table import RankStatus, RankTable
from holdfast.agent.ranks.run import Restored, Run
from holdfast.agent.ranks.watch import RunEvents, Watch
from holdfast.agent.roles.replica import Means
from holdfast.agent.roles.supervisor import Supervisor
from holdfast.agent.uplink.contact import Standing
from holdfast.agent.uplink.lease import Lease
from holdfast.agent.uplink.reporter import Reporter
from holdfast.errors import CheckpointError
from holdfast.models import agent as wire
from holdfast.models.alert import Finding
from holdfast.models.checkpoint import Shard
from holdfast.models.incarnation import unit_of
from holdfast.models.roles import Member
from tests.nemesis import replicas
from tests.nemesis.network import Client
from tests.nemesis.scheduler import Process
from tests.nemesis.training import KEPT, Group, RankProcess, say

if TYPE_CHECKING:
    from tests.nemesis.site import Site

BOOT_S = 1.5
WAITS_AFTER_S = 0.4
"""A rank that was started ahead waits for its state then."""


class Host:
    """A machine with power, or without."""

    def __init__(self, site: Site, name: str) -> None:
        self.site, self.name = site, name
        self.up = False
        self.forsaken = False
        """Its engine took it out of service without reaching it."""
        self.units = 0
        self.lives = 0
        self.unit = ""
        self.agent: Process | None = None
        self.speaker: SimAgent | None = None
        self.children: list[RankProcess] = []
        self.shards: dict[tuple[str, int, str, int], Shard] = {}
        self.announced: dict[replicas.Key, int] = {}
        self.members: dict[str, tuple[Member, ...]] = {}
        """As its processes see them, by job."""
        self.breaks_replicas = False
        """Whatever replica is started on it fails."""

    def boot(self, after_s: float = 0.0) -> None:
        """Power on, as a new unit of the engine."""
        self.site.scheduler.after(after_s, self._boot)

    def _boot(self) -> None:
        if self.up:
            return
        self.units += 1
        self.unit = f"{self.name}u{self.units}"
        self.up, self.forsaken = True, False
        self.site.blamed.discard(self.name)
        self.site.network.down.discard(self.name)
        self.shards.clear()
        self.start_agent()

    def start_agent(self) -> None:
        """Start it, unless it runs or there is no power."""
        if not self.up or (self.agent is not None and self.agent.alive):
            return
        self.lives += 1
        process = Process(self.site.scheduler, f"agent {self.name}.{self.lives}", self.name)
        self.agent = process
        process.on_kill.append(lambda: self.end_ranks("their agent ended"))
        process.start(self._live(process))

    async def _live(self, process: Process) -> None:
        self.speaker = agent = SimAgent(self, process)
        self.site.network.listen(agent.address, process, server.build(agent))
        status = await agent.live()
        self.site.note("agent-exit", on=self.name, status=status)
        process.kill()

    def kill_agent(self) -> None:
        """SIGKILL: ranks end with it."""
        if self.agent is not None:
            self.agent.kill()

    def die(self, why: str) -> None:
        """Power off: everything on it is gone at once."""
        if not self.up:
            return
        self.up = False
        for child in list(self.children):
            child.end(-9, why)
        self.shards.clear()
        self.kill_agent()

    def end_ranks(self, why: str) -> None:
        """As the kernel does when the agent, their parent, dies."""
        for child in list(self.children):
            child.end(-9, why)

    def ranks(self) -> list[RankProcess]:
        """Ranks of jobs that live here."""
        return [child for child in self.children if child.run is not None]

    def save(self, shard: Shard) -> None:
        """Keep it, and the one before it."""
        key = shard.job, shard.rank, shard.tier.value
        self.shards[*key, shard.step] = shard
        steps = sorted(step for *of, step in self.shards if tuple(of) == key)
        for step in steps[:-KEPT]:
            del self.shards[*key, step]


class Nothing:
    """Stands in for what a simulated machine has not: whatever it is asked to do, it does nothing."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_args, **_named: None


class Memory(Nothing):
    """The machine's shared memory, as a table."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self.root = Path("/sim") / host.name
        self.accept_from: dict[str, int] = {}

    def shards(self) -> tuple[Shard, ...]:
        """All that lie here."""
        return tuple(self._host.shards.values())

    def own(self, job: str) -> Path:
        """A name."""
        return self.root / job

    def resume_after(self, job: str, step: int) -> None:
        """Forget what is newer."""
        self._drop(lambda shard: shard.job == job and shard.step > step)

    def forget(self, job: str) -> None:
        """Forget all."""
        before = self._host.site.common_step()
        self._drop(lambda shard: shard.job == job)
        self._host.site.forgot(self._host, job, before)

    def _drop(self, which: Callable[[Shard], bool]) -> None:
        self._host.shards = {key: shard for key, shard in self._host.shards.items() if not which(shard)}


class Supply(Nothing):
    """Code and states for ranks."""

    def __init__(self, host: Host) -> None:
        self._host = host

    async def code(self, job: str, version: str, neighbours: object = ()) -> Path:
        """Check it out."""
        await asyncio.sleep(0.01)
        return Path("/sim/code")

    def versions(self, job: str) -> tuple[str, ...]:
        """Any."""
        return ("v1",)

    async def restored(self, start: wire.Start, rank: int) -> Restored:
        """From this machine's memory or another's, over the network."""
        order, site = start.restore, self._host.site
        await asyncio.sleep(0.01)
        mine = [source for source in (*order.sources, *order.fallbacks) if source.read_by == rank]
        # Of another number of ranks each reads some, and all exchange.
        for wanted in {source.rank for source in mine} if order.saved_by else {rank}:
            for source in mine:
                holder = site.hosts.get(source.machine)
                if source.rank != wanted or holder is None or not holder.up:
                    continue
                which = start.job, wanted, order.step
                there = any((s.job, s.rank, s.step) == which for s in holder.shards.values())
                if there and site.network.is_open(holder.name, self._host.name):
                    break
            else:
                raise CheckpointError(f"step {order.step} rank {wanted}: no source has it")
        return Restored(order.step, "memory")


class Forks(Nothing):
    """Starts processes on the host."""

    warm, waiting = True, 99

    def __init__(self, host: Host) -> None:
        self.host = host

    async def warm_up(self) -> None:
        """It is."""

    async def keep_spares(self, _wanted: object) -> None:
        """They are there."""
        await asyncio.get_running_loop().create_future()

    async def run_soon(self, _target: object, args: tuple[RankOrder]) -> replicas.ReplicaProcess:
        """Start a replica."""
        await asyncio.sleep(0.005)
        return replicas.ReplicaProcess(self.host, *args)

    start = warm_up


class SimBoard(RankTable):
    """The real one; messages are handed to it."""

    def __init__(
        self, path: Path, epoch: int, ranks: tuple[int, ...], events: RunEvents, limits: Any
    ) -> None:
        from collections import deque  # noqa: PLC0415

        self.rows = {rank: RankStatus(rank) for rank in ranks}
        self.marks, self.times = deque(maxlen=64), deque(maxlen=8)
        self.path, self._epoch, self._events, self._limits = path, epoch, events, limits
        self._lowest, self._told_not_finite = min(ranks), False
        self.news = asyncio.Event()

    def close(self) -> None:
        """There is no socket."""

    def drain(self) -> None:
        """Everything was handed over."""


class SimRun(Run):
    """The real one, but for how its ranks are forked."""

    host: Host
    held_at: int | None = None
    mirror: tuple[str, float] = ("", 0.0)
    """The machine that is sent copies, and until when."""

    async def launch(self, forks: Any, code: Path, events: Any, on_exit: Any) -> None:
        """Start all ranks, one after the other."""
        start, host = self.start, self.host
        self._on_exit = on_exit
        self.board = SimBoard(code, start.epoch, start.ranks, events, self._limits)
        site_controls = host.site.controls
        kept: dict[int, Any] = self._go_on(dict.fromkeys(start.ranks, self))  # type: ignore[arg-type]
        late = await survivors.late(kept, self.board.rows)
        await stop([kept[rank] for rank in late])
        for rank, process in self.processes.items():
            if rank in kept:
                self.board.rows[rank].joined = rank not in late
                process.watch(self._exited)
        for rank in start.ranks:
            site_controls[self._control_path(rank)] = self, rank
            if rank in kept and rank not in late and not kept[rank].gone.done():
                continue
            await asyncio.sleep(0.005)
            process = RankProcess(host, rank, self, self._exited)
            process.ahead = self._ahead
            if process.ahead:
                waits = functools.partial(say, process, {"t": "waits", "epoch": start.epoch})
                host.site.scheduler.after(WAITS_AFTER_S, waits)
            elif host.site.shape.kept:
                keeps = functools.partial(say, process, {"t": "keeps", "epoch": start.epoch})
                host.site.scheduler.after(0.05, keeps)
            self.processes[rank] = process
            process.gone.add_done_callback(self._ended)
            self._join(process)

    def go_on(self, process: RankProcess) -> None:
        """A process of an earlier run begins this one's epoch, if it still can."""
        if process.alive and process.left and not process.stopped:
            process.run, process.left, process.held = self, False, False
            say(process, {"t": "joined", "epoch": self.start.epoch})
            self._join(process)

    def _join(self, process: RankProcess) -> None:
        if not process.ahead:
            self.host.site.started(process)
            self.host.site.group(self.start).add(process)

    def hand_over(self, rank: int, restored: Restored) -> None:
        """A rank has its state as soon as it was brought; one that was started ahead joins its epoch with it."""
        process = self.processes.get(rank)
        if isinstance(process, RankProcess) and process.ahead and process.alive:
            process.ahead = False
            self._join(process)

    def hold(self, at_step: int | None) -> None:
        """Its ranks look at it at each boundary."""
        self.held_at = at_step

    def mirrors_to(self, now: float) -> str:
        """Return the machine that is sent copies now; empty: none."""
        name, until = self.mirror
        return name if now < until else ""

    def log_tail(self, rank: int) -> str:
        """Nobody writes one."""
        return ""


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
        self._reporter = Reporter(
            ",".join(site.settings.gateways),
            site.secret,
            self.metrics,
            client,
            standing=self.standing,
            heard=self._heard,
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
        self._supply = Supply(host)  # type: ignore[assignment]
        self._carrier = self.forks  # type: ignore[assignment]
        self._inspector = self  # type: ignore[assignment]
        self.jobs = Jobs(
            forks=self.forks,
            memory=self.memory,
            supply=self._supply,
            metrics=self.metrics,
            host=host.name,
            make_run=self._make_run,
            make_ahead=functools.partial(self._make_run, ahead=True),
            events=lambda run: RunEvents(self._watch, run),
            on_exit=self._watch.exited,
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
        self._lease = Lease(
            self.standing,
            site.secret,
            knock=lambda patience_s: self._reporter.knock(self._heartbeat(), patience_s),
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


async def stop(processes: list[RankProcess], _grace_s: float = 0.0) -> list[int]:
    """As :func:`holdfast.agent.ranks.processes.stop`."""
    alive = [process for process in processes if not process.gone.done()]
    for process in alive:
        process.kill()
    for process in alive:
        await process.gone
    return sorted(process.rank for process in alive)


def tell_to_leave(site: Site, control: str) -> bool:
    """As :func:`holdfast.agent.ranks.survivors._tell`."""
    run, rank = site.controls[control]
    run.processes[rank].leave()
    return True


def order_to_go_on(site: Site, control: str, run: SimRun) -> None:
    """As :func:`holdfast.agent.ranks.survivors.order`."""
    before, rank = site.controls[control]
    site.scheduler.after(0.05, lambda: run.go_on(before.processes[rank]))


async def open_store(forks: Forks, _host: str) -> tuple[RankProcess, int]:
    """As :func:`holdfast.agent.ranks.rendezvous.open_store`."""
    await asyncio.sleep(0.01)
    return RankProcess(forks.host, -1), 1


__all__ = ["EXIT_STALE", "Group", "Host", "open_store", "stop", "unit_of"]

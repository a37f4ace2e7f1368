"""All parts of the gateway, put together, and the loops that drive them."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from holdfast import drivers
from holdfast.clock import Clock
from holdfast.deployments.gateway.api.approvals import Approvals
from holdfast.deployments.gateway.detectors.clocks import Clocks
from holdfast.deployments.gateway.detectors.drains import DrainedMachines
from holdfast.deployments.gateway.detectors.hang import Hangs
from holdfast.deployments.gateway.detectors.heartbeats import SilentMachines
from holdfast.deployments.gateway.detectors.probe import Prober
from holdfast.deployments.gateway.detectors.rehearsals import RehearsalDetector
from holdfast.deployments.gateway.detectors.replicas import Replicas
from holdfast.deployments.gateway.detectors.stacks import StackReader
from holdfast.deployments.gateway.detectors.stragglers import Stragglers
from holdfast.deployments.gateway.detectors.switches import Switches
from holdfast.deployments.gateway.detectors.throughput import Throughput
from holdfast.deployments.gateway.detectors.unreported_exits import UnreportedExits
from holdfast.deployments.gateway.fleet import role_times
from holdfast.deployments.gateway.fleet.acts import JobActs, while_sure
from holdfast.deployments.gateway.fleet.forgotten_holds import Held
from holdfast.deployments.gateway.fleet.leases import Leases
from holdfast.deployments.gateway.fleet.locations import Locations
from holdfast.deployments.gateway.fleet.own_machines import OwnMachines
from holdfast.deployments.gateway.fleet.progress import Progress
from holdfast.deployments.gateway.fleet.release import Releases
from holdfast.deployments.gateway.fleet.roles import TICK_S, Roles
from holdfast.deployments.gateway.fleet.sizes import Sizes
from holdfast.deployments.gateway.fleet.step_times import AllStepTimes
from holdfast.deployments.gateway.fleet.times import Times
from holdfast.deployments.gateway.fleet.unstarted import Unstarted
from holdfast.deployments.gateway.fleet.view import WATCHED, Fleet
from holdfast.deployments.gateway.intake.correlate import Correlator
from holdfast.deployments.gateway.intake.on_hold import OnHold
from holdfast.deployments.gateway.intake.requeue import Requeue
from holdfast.deployments.gateway.metrics import Metrics
from holdfast.deployments.gateway.runs.admissions import Admissions
from holdfast.deployments.gateway.runs.dispatch import Dispatcher
from holdfast.deployments.gateway.runs.flow_runs import Runs
from holdfast.deployments.gateway.runs.head_starts import HeadStarts
from holdfast.deployments.gateway.runs.leftovers import Leftovers
from holdfast.deployments.gateway.runs.reconcile import Reconciler
from holdfast.deployments.gateway.runs.repairs import RepairRuns
from holdfast.deployments.gateway.runs.waiting import Waiting
from holdfast.deployments.gateway.site import Site, log
from holdfast.errors import HoldfastError
from holdfast.models.agent import Heartbeat
from holdfast.models.alert import Alert
from holdfast.policies.classify import sure_signs
from holdfast.policies.config.policy import Policy
from holdfast.settings import Settings
from holdfast.storage.ledger import Ledger

REFRESH_S = 0.5
TOUCH_S = 5.0
"""The ledger hears of living machines so often, of all at once."""
FORGET_EVERY_S = 3600.0
RECONCILE_S = 1.0
LEFTOVERS_S = 5.0
MOST_HEARTBEATS = 500
"""A second: of more, one gateway may answer so late that machines take it for gone."""
TIMES_S = 15.0
REHEARSALS_S = 2.0


@dataclass(frozen=True)
class Loop:
    """Something done again and again."""

    name: str
    work: Callable[[], Awaitable[None]]
    every_s: float


class Gateway:
    """One gateway."""

    def __init__(
        self,
        settings: Settings,
        ledger: Ledger,
        clock: Clock,
        policy: Policy,
        *,
        runs: Runs,
        prober: Prober,
        acts: JobActs,
        metrics: Metrics,
        stacks: StackReader | None = None,
    ) -> None:
        self.site = Site(
            settings=settings,
            ledger=ledger,
            clock=clock,
            policy=policy,
            fleet=Fleet(clock.now()),
            metrics=metrics,
        )
        self.may_act: Callable[[], None] = lambda: None
        """Raises where another gateway may lead by now."""
        self.term: Callable[[], int] = lambda: 0
        """Grows with every change of the gateway that leads; 0: there is only this one."""
        self.acts = acts = while_sure(acts, self._require_sure)
        self.dispatcher = Dispatcher(self.site, runs)
        self.correlator = Correlator(self.site, HeadStarts(self.site, acts, self.dispatcher), prober)
        self.requeue = Requeue(self.site, self.correlator)
        self.waiting = Waiting(self.site, self.dispatcher)
        self.waiting.launching = self.correlator.starting.held
        self.on_hold = OnHold(self.site, self.correlator)
        self.correlator.over = self._over
        self.correlator.keep = self.on_hold.keep
        self.correlator.held_back = self.waiting.held_back
        self.reconciler = Reconciler(self.site, runs, self.dispatcher, self.requeue, acts, self.waiting)
        self.approvals = Approvals(self.site, runs)
        self.leftovers = Leftovers(self.site, runs)
        self.admissions = Admissions(self.site, runs)
        self.repairs = RepairRuns(self.site, runs)
        self.progress = Progress(self.site)
        self.correlator.ended = self.progress.ended_before_others
        self.silent = SilentMachines(self.site, prober, self.correlator)
        self.hangs = Hangs(self.site, self.correlator, stacks)
        self.exits = UnreportedExits(self.site, self.correlator)
        self.exits.launching = self.correlator.starting.held
        self.throughput = Throughput(self.site, self.correlator)
        self.stragglers = Stragglers(self.site, self.correlator)
        self.clocks = Clocks(self.site, self.correlator)
        self.rehearsals = RehearsalDetector(self.site, self.correlator)
        self.replicas = Replicas(self.site, self.correlator)
        self.switches = Switches(self.site, self.correlator)
        self.correlator.on_firing = self.switches.observe
        driver = functools.cache(lambda: drivers.from_settings(settings))
        self.drains = DrainedMachines(self.site, self.correlator, driver)
        self.locations = Locations(self.site, driver)
        self.leases = Leases(self.site)
        self.times = Times(self.site)
        self.step_times = AllStepTimes()
        self.held = Held(self.site, acts)
        self.releases, self.unstarted = self._of_no_run(acts)
        self.sizes = Sizes(self.site, self.correlator, acts.release_unplaced, acts.take_out)
        self.waiting.ask_again = self.sizes.ask_again
        self.roles, self.own_machines = self._of_roles(acts)
        self.resuming: list[Callable[[], Awaitable[None]]] = []
        """Callbacks of other parts, run when this gateway begins to lead."""
        self._forgot_at = clock.monotonic()
        self._many_heartbeats = False
        self._loops: list[asyncio.Task[None]] = []

    def _of_no_run(self, acts: JobActs) -> tuple[Releases, Unstarted]:
        """Return what looks after jobs of which nothing runs: those that ended, and those that never began."""
        ended, never_began = Releases(self.site, acts), Unstarted(self.site, acts)
        ended.launching = never_began.launching = self.correlator.starting.held
        return ended, never_began

    def _of_roles(self, acts: JobActs) -> tuple[Roles, OwnMachines]:
        roles = Roles(self.site, self._require_sure)
        own = OwnMachines(self.site, acts.take_out, roles.have_left, self._require_sure)
        own.launching = self.correlator.starting.held
        self.correlator.of_role = own.accept
        return roles, own

    def _over(self, alert: Alert) -> None:
        if not sure_signs.ends(alert, self.site.policy.classify):
            return
        self.waiting.note_resolved(alert)
        self.on_hold.over(alert)

    def _require_sure(self) -> None:
        self.may_act()

    def observe(self, beat: Heartbeat, *, whole: bool = True) -> None:
        """Show a heartbeat of an admitted machine to all who go by them; not ``whole``: it was read in part."""
        now = self.site.clock.now()
        self.site.fleet.observe(beat, now, whole=whole, window_s=self.site.window_s)
        self.roles.observe(beat)
        try:
            self.step_times.observe(beat, self.site.fleet.jobs, now)
            for detector in (self.hangs, self.throughput, self.clocks):
                detector.observe(beat)
        except Exception:  # the machine is alive, whatever a detector makes of its report
            self.site.metrics.loop_errors.labels("observe").inc()
            log.exception("%s: a detector failed at its heartbeat", beat.machine)

    async def resume(self) -> None:
        """Take up what was going on when the last gateway ended. Silence counts from now on."""
        self.site.listening_since = self.site.clock.now()
        await self.site.refresh()
        await self.roles.resume()
        self.times.resume()
        for take_up in self.resuming:
            await take_up()
        self.site.fleet.grace(self.site.clock.now())
        await self.requeue.resume()
        await self.waiting.resume()
        await self.on_hold.resume()
        await self.reconciler.tick()

    def start(self) -> None:
        """Start the loops."""
        detect = self.site.policy.detect
        for loop in (
            Loop("refresh", self._refresh, REFRESH_S),
            Loop("touch", self.touch, TOUCH_S),
            Loop("settle", self.correlator.settle, 0.02),
            Loop("silent machines", self.silent.tick, 0.2),
            Loop("hangs", self.hangs.tick, 0.5),
            Loop("unheard exits", self.exits.tick, 0.5),
            Loop("throughput", self.throughput.tick, detect.throughput.every_s),
            Loop("stragglers", self.stragglers.tick, detect.straggler.every_s),
            Loop("switches", self.switches.tick, detect.intervals.network_s),
            Loop("drains", self.drains.tick, detect.intervals.drains_s),
            Loop("locations", self.locations.tick, detect.intervals.drains_s),
            Loop("rehearsals", self.rehearsals.tick, REHEARSALS_S),
            Loop("replicas", self.replicas.tick, 1.0),
            Loop("clocks", self.clocks.tick, detect.intervals.network_s),
            Loop("prefect", self.dispatcher.ping, 2.0),
            Loop("reconcile", self.reconciler.tick, RECONCILE_S),
            Loop("suspended runs", self.leftovers.tick, LEFTOVERS_S),
            Loop("waiting", self.waiting.tick, RECONCILE_S),
            Loop("on hold", self.on_hold.tick, 1.0),
            Loop("progress", self.progress.watch, 1.0),
            Loop("admissions", self.admissions.tick, 1.0),
            Loop("repairs", self.repairs.tick, 1.0),
            Loop("unstarted jobs", self.unstarted.tick, 2.0),
            Loop("release", self.releases.tick, 2.0),
            Loop("roles", self.roles.tick, TICK_S),
            Loop("machines of roles", self.own_machines.tick, 1.0),
            Loop("role times", self.roles.times.tick, role_times.TICK_S),
            Loop("sizes", self.sizes.tick, 2.0),
            Loop("times", self.times.tick, TIMES_S),
        ):
            self._loops.append(asyncio.create_task(self._repeat(loop), name=loop.name))

    async def stop(self) -> None:
        """Stop the loops and what is under way; nothing is lost, the next gateway takes it up."""
        tasks = [*self._loops, *self.site.tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._loops.clear()

    async def _repeat(self, loop: Loop) -> None:
        while True:
            try:
                await loop.work()
            except Exception:
                self.site.metrics.loop_errors.labels(loop.name).inc()
                log.exception("%s: this round failed", loop.name)
                await self.site.clock.sleep(RECONCILE_S)
            await self.site.clock.sleep(loop.every_s)

    async def touch(self) -> None:
        """Record in the ledger which machines were heard: for people, so a lost write does not matter; and tidy up."""
        unwritten, self.site.fleet.unwritten = self.site.fleet.unwritten, {}
        if unwritten:
            with contextlib.suppress(HoldfastError):
                await asyncio.to_thread(self.site.ledger.touch, unwritten)
        await self._forget_old_alerts()
        await self.held.tick()

    async def _forget_old_alerts(self) -> None:
        """Forget, a part at a time, what no one asks for any more: a ledger lives for years."""
        clock = self.site.clock
        if clock.monotonic() - self._forgot_at < FORGET_EVERY_S:
            return
        forgot = 0
        with contextlib.suppress(HoldfastError):
            kept_s = self.site.settings.alerts_days * 86_400.0
            forgot = await asyncio.to_thread(self.site.ledger.forget_alerts, clock.now() - kept_s)
        if not forgot:  # else there may be more: the next round goes on
            self._forgot_at = clock.monotonic()

    def _note_heartbeats(self) -> None:
        """Log once when the machines in service send more heartbeats than one gateway answers in time."""
        every_s = self.site.settings.heartbeat_s
        watched = sum(machine.state in WATCHED for machine in self.site.fleet.machines.values())
        many, before = watched / every_s > MOST_HEARTBEATS, self._many_heartbeats
        self._many_heartbeats = many
        if many and not before:
            log.warning(
                "%d machines that send a heartbeat every %g s are %.0f a second, and one gateway answers about %d: set "
                "HOLDFAST_HEARTBEAT_S to %.1f or more, for the gateway and all agents",
                watched,
                every_s,
                watched / every_s,
                MOST_HEARTBEATS,
                math.ceil(10 * watched / MOST_HEARTBEATS) / 10,
            )

    async def _refresh(self) -> None:
        await self.site.refresh()
        metrics, fleet = self.site.metrics, self.site.fleet
        self._note_heartbeats()
        metrics.machines.clear()
        for machine in fleet.machines.values():
            metrics.machines.labels(machine.state).inc()
        for job in fleet.jobs.values():
            metrics.job_epoch.labels(job.name).set(job.epoch)
        metrics.role_replicas.clear()
        metrics.role_running.clear()
        metrics.role_share.clear()
        for job in fleet.jobs.values():
            for role in self.roles.view(job):
                metrics.role_replicas.labels(job.name, role["name"]).set(role["replicas"])
                metrics.role_running.labels(job.name, role["name"]).set(role["running"])
                if role["share"] is not None:
                    metrics.role_share.labels(job.name, role["name"]).set(role["share"])

"""All parts of the gateway, put together, and the loops that drive them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from holdfast.clock import Clock
from holdfast.deployments.gateway.acts import Acts
from holdfast.deployments.gateway.carry_over import CarryOver
from holdfast.deployments.gateway.correlate import Correlator
from holdfast.deployments.gateway.detectors.exits import UnheardExits
from holdfast.deployments.gateway.detectors.hang import Hangs
from holdfast.deployments.gateway.detectors.heartbeats import SilentMachines
from holdfast.deployments.gateway.dispatch import Dispatcher
from holdfast.deployments.gateway.fleet import Fleet
from holdfast.deployments.gateway.metrics import Metrics
from holdfast.deployments.gateway.probe import Prober
from holdfast.deployments.gateway.progress import Progress
from holdfast.deployments.gateway.reconcile import Reconciler
from holdfast.deployments.gateway.release import Releases
from holdfast.deployments.gateway.runs import Runs
from holdfast.deployments.gateway.site import Site, log
from holdfast.policies.policy import Policy
from holdfast.settings import Settings
from holdfast.storage.ledger import Ledger

REFRESH_S = 0.5
RECONCILE_S = 1.0


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
        acts: Acts,
        metrics: Metrics,
    ) -> None:
        self.site = Site(
            settings=settings,
            ledger=ledger,
            clock=clock,
            policy=policy,
            fleet=Fleet(clock.now()),
            metrics=metrics,
        )
        self.acts = acts
        self.dispatcher = Dispatcher(self.site, runs)
        self.correlator = Correlator(self.site, self.dispatcher, prober)
        self.carry_over = CarryOver(self.site, self.correlator)
        self.reconciler = Reconciler(self.site, runs, self.dispatcher, self.carry_over)
        self.progress = Progress(self.site)
        self.silent = SilentMachines(self.site, prober, self.correlator)
        self.hangs = Hangs(self.site, self.correlator)
        self.exits = UnheardExits(self.site, self.correlator)
        self.releases = Releases(self.site, acts.free)
        self._loops: list[asyncio.Task[None]] = []

    async def resume(self) -> None:
        """Take up what was going on when the last gateway ended. Silence counts from now on."""
        await self.site.refresh()
        self.site.fleet.grace(self.site.clock.now())
        await self.carry_over.resume()
        await self.reconciler.tick()

    def start(self) -> None:
        """Start the loops."""
        for loop in (
            Loop("refresh", self._refresh, REFRESH_S),
            Loop("settle", self.correlator.settle, 0.02),
            Loop("silent machines", self.silent.tick, 0.2),
            Loop("hangs", self.hangs.tick, 0.5),
            Loop("unheard exits", self.exits.tick, 0.5),
            Loop("prefect", self.dispatcher.ping, 2.0),
            Loop("reconcile", self.reconciler.tick, RECONCILE_S),
            Loop("progress", self.progress.watch, 1.0),
            Loop("release", self.releases.tick, 2.0),
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

    async def _refresh(self) -> None:
        await self.site.refresh()
        metrics, fleet = self.site.metrics, self.site.fleet
        metrics.machines.clear()
        for machine in fleet.machines.values():
            metrics.machines.labels(machine.state).inc()
        for job in fleet.jobs.values():
            metrics.job_epoch.labels(job.name).set(job.epoch)

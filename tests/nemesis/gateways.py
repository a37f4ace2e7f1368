"""The hosts of gateways: the real application over the simulated site."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from holdfast.deployments.gateway.app import create_app
from holdfast.deployments.gateway.detectors.probe import HttpProber
from holdfast.deployments.gateway.fleet.acts import Operations
from holdfast.deployments.gateway.metrics import Metrics
from holdfast.errors import HoldfastError, UnavailableError
from tests.nemesis.playbook_runs import Runs
from tests.nemesis.scheduler import Process
from tests.nemesis.services import HostClock, Services

if TYPE_CHECKING:
    from tests.nemesis.site import Site


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
            # It ends, and its supervisor starts it again.
            site.note("gateway-exit", on=self.host, error=str(error)[:100])
            process.kill()
            site.scheduler.after(1.0, self.start)

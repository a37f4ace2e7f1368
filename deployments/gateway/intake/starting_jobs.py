"""Alerts of a job whose ranks are being started: they wait until the start is over."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence

from holdfast.deployments.gateway.intake.outcome import Outcome, What
from holdfast.deployments.gateway.site import Site, log
from holdfast.errors import UnavailableError
from holdfast.models.alert import Alert

HELD_WHILE_LAUNCHING = 256
LEDGER_AGAIN_S = 1.0
"""Pause before alerts that the ledger could not take are tried again."""


class StartingJobs:
    """Jobs that this gateway starts at the moment; what it held back goes to ``accept_all``."""

    def __init__(self, site: Site, accept_all: Callable[[Iterable[Alert]], Awaitable[list[Outcome]]]) -> None:
        self._site = site
        self._accept_all = accept_all
        self.held: dict[str, list[Alert]] = {}
        """Alerts, by the job that is started."""

    def launching(self, job: str) -> None:
        """Note that we are starting the job's ranks: their reports wait until that is over."""
        self.held.setdefault(job, [])

    async def launched(self, job: str) -> None:
        """Note that the start is over, and take the alerts held back meanwhile; it never fails."""
        held = self.held.pop(job, [])
        try:
            await self._accept_all(held)
        except UnavailableError as error:
            log.warning("%s: what its ranks reported while it was started waits: %s", job, error)
            self._site.spawn(self._take_held(held), f"alerts held back of {job}")

    async def _take_held(self, held: Sequence[Alert]) -> None:
        """Take alerts once the ledger answers again; those that were taken already are known."""
        while True:
            await self._site.clock.sleep(LEDGER_AGAIN_S)
            try:
                await self._accept_all(held)
            except UnavailableError:
                continue
            return

    def hold_back(self, alert: Alert) -> Outcome:
        """Keep an alert of a job that is started until that is over."""
        assert alert.job is not None
        held = self.held[alert.job]
        if len(held) < HELD_WHILE_LAUNCHING:
            held.append(alert)
        return Outcome(outcome=What.SETTLING, message=f"job {alert.job} is being started")

"""How long the replicas of each role were wanted and ran, counted at each look of the gateway that leads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping

from holdfast.deployments.gateway.site import Site
from holdfast.models.job import Job
from holdfast.models.roles import TRAINER, RoleTime
from holdfast.policies.accounting import role_time

TICK_S = 1.0
WRITE_S = 20.0
"""A gateway that ends without a word loses at most this of the account, in seconds."""


class RoleTimes:
    """Kept in memory, and written down now and then: never what recovery waits for."""

    def __init__(self, site: Site, running: Callable[[], Iterable[tuple[Job, Mapping[str, int]]]]) -> None:
        """``running``: the jobs whose replicas are to run, with how many run by role."""
        self._site, self._running = site, running
        self._times: dict[str, dict[str, RoleTime]] = {}
        self._looked_at: dict[str, float] = {}
        self._written_at: dict[str, float] = {}

    def resume(self) -> None:
        """Read the ledger again: another gateway may have led meanwhile."""
        self._times.clear()
        self._looked_at.clear()
        self._written_at.clear()

    def of(self, job: str) -> Mapping[str, RoleTime]:
        """Return what is known of a job's roles."""
        return self._times.get(job, {})

    async def submitted(self, job: str) -> None:
        """Begin at nothing: the figures of a former job of this name are not its own."""
        await asyncio.to_thread(self._site.ledger.set_role_times, job, {})
        self._times[job] = {}
        self._looked_at.pop(job, None)

    async def tick(self) -> None:
        """Count the time since the last look."""
        now, seen = self._site.clock.now(), set[str]()
        for job, running in self._running():
            seen.add(job.name)
            if job.name not in self._times:
                self._times[job.name] = await asyncio.to_thread(self._site.ledger.role_times, job.name)
            times, passed = self._times[job.name], now - self._looked_at.get(job.name, now)
            self._looked_at[job.name] = now
            for name, role in job.spec.roles.items():
                if name != TRAINER:
                    before = times.get(name, RoleTime())
                    times[name] = role_time.after(before, passed, role.replicas, running.get(name, 0))
            if abs(now - self._written_at.setdefault(job.name, now)) >= WRITE_S:
                await self._write(job.name, now)
        for name in self._looked_at.keys() - seen:  # it ended, or stands at zero
            await self._write(name, now)
            self._looked_at.pop(name, None)  # it may be submitted again meanwhile

    async def _write(self, job: str, now: float) -> None:
        await asyncio.to_thread(self._site.ledger.set_role_times, job, self._times[job])
        self._written_at[job] = now

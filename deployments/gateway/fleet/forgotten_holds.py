"""Ranks that wait at a step boundary though no one holds their job: they are let go.

A gateway that is killed while a person pauses a job may have ordered that, and not recorded it. Ranks that are held
count as no hang, so nothing else would ever start them again.
"""

from __future__ import annotations

from holdfast.deployments.gateway.fleet.acts import JobActs
from holdfast.deployments.gateway.site import Site, log
from holdfast.errors import HoldfastError
from holdfast.models.job import Job, JobState
from holdfast.operations.hold import HOLD_TIMEOUT_S

AFTER_S = HOLD_TIMEOUT_S + 30.0
"""Longer than an order to hold is under way before it is recorded, or taken back."""


class Held:
    """Finds such jobs, and lets their ranks go."""

    def __init__(self, site: Site, acts: JobActs) -> None:
        self._site = site
        self._acts = acts
        self._since: dict[tuple[str, int], float] = {}
        """By job and epoch, by a clock that is never set."""

    async def tick(self) -> None:
        """Run one round."""
        now, jobs = self._site.clock.monotonic(), list(self._site.fleet.jobs.values())
        held = [job for job in jobs if job.state is JobState.RUNNING and self._waits(job)]
        self._since = {(job.name, job.epoch): self._since.get((job.name, job.epoch), now) for job in held}
        for job in held:
            if now - self._since[job.name, job.epoch] >= AFTER_S:
                await self._let_go(job)
                del self._since[job.name, job.epoch]  # the next round looks again

    def _waits(self, job: Job) -> bool:
        return any(rank.paused for _, run in self._site.fleet.runs(job) for rank in run.ranks)

    async def _let_go(self, job: Job) -> None:
        try:
            # What the fleet shows may be old by now: the ledger is asked at the moment of the order, and after it.
            if await self._acts.let_go_unheld(job):
                log.warning(
                    "job %s: its ranks waited at a step boundary, and no one held them: they go on", job.name
                )
        except HoldfastError as error:
            log.warning("job %s: its ranks could not be let go: %s", job.name, error)

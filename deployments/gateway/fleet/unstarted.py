"""Jobs whose submission was cut short: they are recorded, and nothing would ever start them.

The ledger may go away, or the gateway die, between the record of a job and its start. Such a job failed: else it
would be called paused for ever, and its name be taken.
"""

from __future__ import annotations

import asyncio
from collections.abc import Container

from holdfast.deployments.gateway.fleet.acts import JobActs
from holdfast.deployments.gateway.site import Site, log
from holdfast.errors import HoldfastError, UnknownError
from holdfast.models.job import JobState

AFTER_S = 30.0
"""Where ranks were ordered to start: machines that run some have been heard by then."""


class Unstarted:
    """Finds such jobs, and ends them; those whose ranks were started before it was recorded are called running."""

    def __init__(self, site: Site, acts: JobActs) -> None:
        self._site = site
        self._acts = acts
        self._since: dict[tuple[str, int], float] = {}
        """By job and epoch, by a clock that is never set."""
        self.launching: Container[str] = ()
        """Jobs that a person starts at the moment; the correlator's."""
        self.submitting: set[str] = set()
        """Jobs whose submission is under way."""

    async def tick(self) -> None:
        """Run one round."""
        paused = [job for job in list(self._site.fleet.jobs.values()) if job.state is JobState.PAUSED]
        self._since = {
            key: at for key, at in self._since.items() if key in {(j.name, j.epoch) for j in paused}
        }
        for job in paused:
            if job.name in self.submitting or job.name in self.launching:
                continue
            try:
                if await self._is_cut_short(job.name):
                    await self._settle(job.name)
            except HoldfastError as error:
                log.warning("job %s, whose submission was cut short: %s", job.name, error)

    async def end(self, name: str) -> None:
        """Record a job that was submitted, and that no rank was ordered to start for, as failed; leave others alone."""
        if await self._is_cut_short(name) and await self._never_ordered(name):
            await self.fail(name)

    async def fail(self, name: str) -> None:
        """Record a job that could not be started as failed, and give its machines back."""
        ledger, failed, stopped = self._site.ledger, JobState.FAILED, JobState.STOPPED
        # One that a person stopped meanwhile stays so.
        left = await asyncio.to_thread(ledger.set_job, name, state=failed, unless=stopped)
        await self._acts.stop(name)
        if left.state is failed:
            await asyncio.to_thread(ledger.set_job, name, state=failed)

    async def _settle(self, name: str) -> None:
        """Decide on a job whose ranks may have been started, once its machines had time to say whether they run."""
        if await self._never_ordered(name):
            await self.fail(name)
            return
        job, now = await self._site.job(name), self._site.clock.monotonic()
        if now - self._since.setdefault((name, job.epoch), now) < AFTER_S:
            return
        if any(run.ranks for _, run in self._site.fleet.runs(job)):
            log.warning("job %s: its ranks run, and their start was not recorded", name)
            await asyncio.to_thread(self._site.ledger.set_running, name, job.epoch, job.done_at)
        else:
            await self.fail(name)

    async def _is_cut_short(self, name: str) -> bool:
        """Return whether the job is as its submission recorded it: it was in no other state since."""
        ledger = self._site.ledger
        try:
            job = await asyncio.to_thread(ledger.job, name)
        except UnknownError:
            return False
        if job.state is not JobState.PAUSED:
            return False
        return not await asyncio.to_thread(ledger.state_changes, name, job.submitted_at)

    async def _never_ordered(self, name: str) -> bool:
        return not await asyncio.to_thread(self._site.ledger.was_launched, name)

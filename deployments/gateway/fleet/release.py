"""Machines of jobs that are done, or were stopped, go back to the standby pool; dead ones are evicted.

First the last step goes to S3: the machines' memory is emptied, and it need not have been due there.
"""

from __future__ import annotations

from collections.abc import Container

from holdfast.deployments.gateway.fleet.acts import JobActs
from holdfast.deployments.gateway.site import Site, log
from holdfast.errors import HoldfastError
from holdfast.models.job import Job, JobState
from holdfast.models.machine import MachineState

AFTER_S = 10.0
"""Delay after a job is done: the last checkpoint's upload may still be under way when the last rank ends."""
AFTER_STOP_S = 120.0
"""Delay after a stop: the caller that stops a job also frees its machines, unless it fails midway."""
_AFTER_S = {JobState.DONE: AFTER_S, JobState.STOPPED: AFTER_STOP_S}
UPLOAD_S = 180.0
"""Longest wait for that upload: an S3 that stays away keeps no machines."""


class Releases:
    """Looks at what is, not at what happened: a gateway that was away when a job ended catches up."""

    def __init__(self, site: Site, acts: JobActs) -> None:
        self._site = site
        self._acts = acts
        self._in_s3: set[tuple[str, int]] = set()
        """Jobs and their epochs whose last step needs no upload any more."""
        self.launching: Container[str] = ()
        """Jobs that a person starts at the moment; the correlator's. One that was stopped is so until its ranks run."""

    async def tick(self) -> None:
        """Run one round."""
        fleet, now = self._site.fleet, self._site.clock.now()
        held = {machine.job for machine in fleet.machines.values() if machine.state is MachineState.ACTIVE}
        self._in_s3 = {ended for ended in self._in_s3 if ended[0] in held}
        for job in list(fleet.jobs.values()):
            after_s = _AFTER_S.get(job.state)
            if after_s is None or job.name not in held or job.name in self.launching:
                continue
            waited_s = now - (job.done_at or now)
            if job.state is JobState.STOPPED and waited_s < after_s:
                continue
            try:
                if not await self._is_in_s3(job) and waited_s < after_s + UPLOAD_S:
                    continue
                if waited_s >= after_s:
                    await self._acts.free(job.name)
            except HoldfastError as error:
                log.warning("machines of job %s: %s", job.name, error)

    async def _is_in_s3(self, job: Job) -> bool:
        """Order the upload of the last step until nothing is left to upload."""
        ended = job.name, job.epoch
        if ended not in self._in_s3 and await self._acts.persist_last(job.name):
            self._in_s3.add(ended)
        return ended in self._in_s3

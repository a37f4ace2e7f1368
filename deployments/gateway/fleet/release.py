"""Machines of jobs that are done, or were stopped, go back to the standby pool; dead ones are evicted."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from holdfast.deployments.gateway.site import Site, log
from holdfast.errors import HoldfastError
from holdfast.models.job import JobState
from holdfast.models.machine import MachineState

AFTER_S = 10.0
"""Delay after a job is done: the last checkpoint's upload may still be under way when the last rank ends."""
AFTER_STOP_S = 120.0
"""Delay after a stop: the caller that stops a job also frees its machines, unless it fails midway."""
_AFTER_S = {JobState.DONE: AFTER_S, JobState.STOPPED: AFTER_STOP_S}


class Releases:
    """Looks at what is, not at what happened: a gateway that was away when a job ended catches up."""

    def __init__(self, site: Site, free: Callable[[str], Awaitable[None]]) -> None:
        self._site = site
        self._free = free

    async def tick(self) -> None:
        """Run one round."""
        fleet, now = self._site.fleet, self._site.clock.now()
        held = {machine.job for machine in fleet.machines.values() if machine.state is MachineState.ACTIVE}
        for job in list(fleet.jobs.values()):
            after_s = _AFTER_S.get(job.state)
            if after_s is None or job.name not in held or now - (job.done_at or now) < after_s:
                continue
            try:
                await self._free(job.name)
            except HoldfastError as error:
                log.warning("machines of job %s: %s", job.name, error)

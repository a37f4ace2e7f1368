"""The end of an incident whose attempts are spent: its job trains on where it can."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable

from holdfast.deployments.gateway.fleet.acts import JobActs
from holdfast.deployments.gateway.runs.waiting import Waiting
from holdfast.deployments.gateway.site import Site, log
from holdfast.errors import HoldfastError, RefusedError, StaleError
from holdfast.models.alert import Incident, IncidentState
from holdfast.models.lease import GIVING_UP, JOB_LEASE_S
from holdfast.policies.escalate import overtake, waits

_FIX = (
    ". Fix the playbook {playbook} in its package, then restart the control plane "
    "(`holdfast down --keep-machines`, `holdfast up --machines 0`)"
)


class GivingUp:
    """Ends an incident whose runs all failed, and sees to its job."""

    def __init__(self, site: Site, acts: JobActs, waiting: Waiting) -> None:
        self._site = site
        self._acts = acts
        self._waiting = waiting
        self.start: Callable[[str, str], Awaitable[None]] = acts.launch
        """Starts the next epoch of a job, for a reason."""

    async def give_up(self, incident: Incident, why: str) -> None:
        """Give up as a playbook does at a limit: the ranks are stopped, the job has failed, a human must look.

        A job that the incident leaves running runs on, and one that a broken playbook of another package stopped is
        started again.
        """
        if overtake.of_a_package(incident):
            why += _FIX.format(playbook=incident.incident_class.value)
        log.error("%s: %s", incident.id, why)
        job = await asyncio.to_thread(self._site.ledger.job, incident.job)
        if waits.beside(incident.incident_class, job.state):
            await asyncio.to_thread(
                self._site.ledger.set_incident,
                incident.id,
                state=IncidentState.NEEDS_HUMAN,
                summary=f"{why}: a human must look; the job runs on",
            )
            return
        ledger, holder = self._site.ledger, f"gateway:{uuid.uuid4().hex[:8]}"
        try:
            # A run that was only slow may go on at any time: from now on nothing of what it does is taken.
            later = incident.attempt + 1
            await asyncio.to_thread(ledger.take_job, incident.id, later, GIVING_UP, holder, JOB_LEASE_S)
        except (RefusedError, StaleError) as error:
            log.info("%s: not given up: %s", incident.id, error)
            return
        try:
            await self._see_to_the_job(incident, why)
        finally:
            await asyncio.to_thread(ledger.release_job, incident.job, holder)

    async def _see_to_the_job(self, incident: Incident, why: str) -> None:
        ledger = self._site.ledger
        known = await asyncio.to_thread(ledger.incident, incident.id)
        actions = await asyncio.to_thread(ledger.actions, incident.id, evidence=False)
        # That runs fail (a worker is killed, a database is away, a playbook has a bug) is no reason to stop a job.
        if overtake.left_running(known, actions):
            await self._waiting.leave_running(incident, why)
            return
        if overtake.may_start_again(known, actions) and await self._started(incident):
            await self._waiting.leave_running(
                incident, f"{why}; the job was started on the machines that it has"
            )
            return
        try:
            await self._acts.halt(incident.job)
        except HoldfastError as error:
            log.warning("%s: its ranks could not be stopped: %s", incident.id, error)
        await self._waiting.put(incident, why)

    async def _started(self, incident: Incident) -> bool:
        try:
            await self.start(incident.job, f"the playbook of {incident.id} failed in all attempts")
        except HoldfastError as error:
            log.warning("%s: its job does not start on the machines that it has: %s", incident.id, error)
            return False
        return True

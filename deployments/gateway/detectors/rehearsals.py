"""Follow the machines' reports of rehearsed restores: a failure opens an incident, a later success ends it."""

from __future__ import annotations

import asyncio

from holdfast.deployments.gateway.intake.correlate import Correlator
from holdfast.deployments.gateway.site import Site, log
from holdfast.models.alert import Alert, AlertKind, Incident, IncidentClass, IncidentState
from holdfast.models.job import Job, JobState
from holdfast.models.rehearsal import RehearsalOutcome
from holdfast.policies.restore.rehearsed import Restorable, restorable
from holdfast.policies.restore.unsaved import Unsaved, unsaved

_CLASS = IncidentClass.CHECKPOINT_UNRESTORABLE
_NEWEST = 50


def of_job(site: Site, job: Job) -> Restorable:
    """Return the state of a job's rehearsals, as the newest heartbeats have it."""
    runs = {name: site.fleet.run_of(job, name) for name in job.machines}
    return restorable({name: run.rehearsed if run else None for name, run in runs.items()})


def unsaved_of(site: Site, job: Job) -> tuple[Unsaved, ...]:
    """Return where a job's saves fail at present, as the newest heartbeats have it."""
    return unsaved({name: run.setbacks for name, run in site.fleet.runs(job)})


class RehearsalDetector:
    """Agents report a failure at once; this class makes sure that none is lost behind another incident."""

    def __init__(self, site: Site, correlator: Correlator) -> None:
        self._site = site
        self._correlator = correlator

    async def tick(self) -> None:
        """Run one round."""
        for job in list(self._site.fleet.jobs.values()):
            if job.state is JobState.RUNNING:
                found = of_job(self._site, job)
                if found.outcome is RehearsalOutcome.FAILED:
                    await self._failed(job, found)
                elif found.outcome is RehearsalOutcome.PROVEN:
                    await self._proven(job, found)

    async def _failed(self, job: Job, found: Restorable) -> None:
        """Raise it if no incident of this epoch has it: the agent's word may have come in the midst of another one."""
        if await asyncio.to_thread(self._site.ledger.acting, job.name, evidence=False):
            return
        if any(one.epoch == job.epoch for one in await self._incidents(job)):
            return
        alert = Alert(
            kind=AlertKind.UNRESTORABLE,
            job=job.name,
            epoch=job.epoch,
            at=self._site.clock.now(),
            evidence={"detail": found.told},
        )
        await self._correlator.accept_all([alert])

    async def _proven(self, job: Job, found: Restorable) -> None:
        """Resolve the incidents that waited for a person: a later rehearsal succeeded."""
        for incident in await self._incidents(job):
            if incident.state is IncidentState.NEEDS_HUMAN:
                now = self._site.clock.now()
                log.info("%s: %s: resolved", incident.id, found.told)
                await asyncio.to_thread(
                    self._site.ledger.set_incident,
                    incident.id,
                    state=IncidentState.RECOVERED,
                    recovered_at=now,
                    summary=f"{found.told} since. Before: {incident.summary}",
                )

    async def _incidents(self, job: Job) -> list[Incident]:
        newest = await asyncio.to_thread(self._site.ledger.incidents, job.name, None, _NEWEST, evidence=False)
        return [one for one in newest if one.incident_class is _CLASS and one.opened_at >= job.submitted_at]

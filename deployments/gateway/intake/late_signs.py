"""A machine of a job that stands turns out to be at fault: the incident that waits learns of it, and may go on."""

from __future__ import annotations

import asyncio

from holdfast.deployments.gateway.intake.deduplicator import Deduplicator
from holdfast.deployments.gateway.intake.outcome import Outcome, What
from holdfast.deployments.gateway.site import Site
from holdfast.errors import StaleError
from holdfast.models.alert import Alert
from holdfast.models.job import Job, JobState
from holdfast.policies.classify import sure_signs


async def join_waiting(site: Site, memory: Deduplicator, alert: Alert, job: Job) -> Outcome | None:
    """Add a sure sign to the job's incident that waits for its next attempt; None: it is none, or nothing waits.

    Without it the next attempt would start the job on that very machine.
    """
    if job.state is not JobState.FAILED or not sure_signs.is_sure(alert, site.policy.classify):
        return None
    waits = [each for each in await asyncio.to_thread(site.ledger.waits) if each.job == job.name]
    if not waits:
        return None
    incident = waits[-1].incident_id
    try:
        await asyncio.to_thread(site.ledger.join_waiting, incident, [alert])
    except StaleError:
        return None  # it goes on, or a person intervened: what is reported again finds the job as it is
    memory.take(alert.key, incident)
    await asyncio.to_thread(site.ledger.record_alert, alert, incident, What.JOINED)
    return Outcome(incident=incident, outcome=What.JOINED, message="the next attempt knows of it")

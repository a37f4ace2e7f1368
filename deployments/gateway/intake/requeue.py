"""Alerts that must not be lost between two incidents, or between two gateways."""

from __future__ import annotations

import asyncio

from holdfast.deployments.gateway.intake.correlate import Correlator
from holdfast.deployments.gateway.intake.deduplicator import FOR_S
from holdfast.deployments.gateway.intake.outcome import What
from holdfast.deployments.gateway.intake.signs import still_true
from holdfast.deployments.gateway.site import Site
from holdfast.models.alert import Alert, Incident, IncidentState

LOOK_BACK = 100
"""Incidents, newest first, whose signals a new gateway remembers."""


class Requeue:
    """Hands alerts to the correlator again that still mean something."""

    def __init__(self, site: Site, correlator: Correlator) -> None:
        self._site = site
        self._correlator = correlator

    async def closed(self, incident: Incident) -> None:
        """Queue the alerts of a closed incident again if they are still true."""
        self._correlator.memory.closed(incident.id, incident.closed_at or self._site.clock.now())
        if incident.state is IncidentState.NEEDS_HUMAN:
            return
        job = await self._site.job(incident.job)
        for alert in incident.alerts:
            if still_true(alert, incident, job, self._site.fleet.machines):
                again = f"{alert.key}:after:{incident.id}"
                fresh = alert.model_copy(update={"epoch": job.epoch, "fingerprint": again})
                await self._correlator.accept_all([fresh])

    async def resume(self) -> None:
        """Load, after a start of the gateway, the state of its predecessor, and take up the alerts left undecided."""
        ledger = self._site.ledger
        newest, still_open, recorded = await asyncio.gather(
            asyncio.to_thread(ledger.incidents, None, None, LOOK_BACK),
            asyncio.to_thread(ledger.incidents, None, IncidentState.OPEN),
            asyncio.to_thread(ledger.alerts),
        )
        known = {incident.id: incident for incident in (*newest, *still_open)}
        self._correlator.memory.load(known.values(), self._site.clock.now())
        # What was closed while no gateway looked; of others it finds that their alerts were queued, or do not hold.
        now = self._site.clock.now()
        for incident in reversed(newest):
            if incident.closed_at is not None and now - incident.closed_at <= FOR_S:
                await self.closed(incident)
        settled = {alert.key for alert in recorded if not alert.outcome.startswith(What.SETTLING)}
        for alert in reversed(recorded):
            if alert.key not in settled:
                sent = Alert.model_validate(alert.model_dump(include=set(Alert.model_fields)))
                await self._correlator.accept_all([sent])

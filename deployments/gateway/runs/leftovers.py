"""Runs that are suspended for an answer that decides nothing any more are cancelled: no person is to answer them."""

from __future__ import annotations

import asyncio

from holdfast.deployments.gateway.runs.flow_runs import Runs, Suspended
from holdfast.deployments.gateway.site import Site, log
from holdfast.errors import UnavailableError, UnknownError
from holdfast.models.alert import Incident, IncidentState

_LOOK_BACK = 50
"""Incidents of a job, newest first, among which the one of a run that a person started is looked for."""


class Leftovers:
    """Compares the suspended runs that Prefect has with the ledger's incidents: nothing has to be remembered."""

    def __init__(self, site: Site, runs: Runs) -> None:
        self._site = site
        self._runs = runs

    async def tick(self) -> None:
        """Run one round."""
        try:
            for run in await self._runs.suspended():
                why = await asyncio.to_thread(self._why_over, run)
                if why and await self._runs.cancel(run.id, why):
                    log.info("flow run %s is cancelled: %s", run.id, why)
                elif why:
                    log.debug(
                        "flow run %s is not cancelled, Prefect has it as gone or going on: %s", run.id, why
                    )
        except UnavailableError as error:
            log.debug("suspended runs: %s", error)

    def _why_over(self, run: Suspended) -> str:
        """Return why the run's answer decides nothing; empty: it does, or the incident is not known (blocking)."""
        try:
            incident = self._incident(run)
        except UnknownError:
            return ""  # of another site on the same server
        if incident is None:
            return ""
        if incident.state is not IncidentState.OPEN:
            return f"incident {incident.id} is over ({incident.state}): its question decides nothing"
        if incident.flow_run_id not in (None, run.id):
            return f"another run works on incident {incident.id}: its question decides nothing"
        return ""

    def _incident(self, run: Suspended) -> Incident | None:
        ledger = self._site.ledger
        if run.incident:
            return ledger.incident(run.incident)
        found = ledger.incidents(run.job, limit=_LOOK_BACK, evidence=False) if run.job else []
        return next((each for each in found if each.flow_run_id == run.id), None)

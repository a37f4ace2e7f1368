"""Head starts of recoveries: the first acts, made while a new incident's playbook is being started."""

from __future__ import annotations

from holdfast.deployments.gateway.fleet.acts import JobActs
from holdfast.deployments.gateway.intake.opening import Starter
from holdfast.deployments.gateway.site import Site, log
from holdfast.errors import HoldfastError
from holdfast.models.alert import Incident
from holdfast.operations.head_start import CLASSES


class HeadStarts:
    """Makes them in the background, one for each incident that is opened to be worked on."""

    def __init__(self, site: Site, acts: JobActs, playbooks: Starter) -> None:
        self._site, self._acts, self._playbooks = site, acts, playbooks

    def start(self, incident: Incident) -> None:
        """Start the incident's playbook, and make the first acts meanwhile if its class has any; returns at once.

        Where ranks may keep their processes the playbook is started after these acts: most likely the next epoch is
        started by then, and all that is left is to diagnose. Should this gateway end before that, the reconciler starts
        it.
        """
        if incident.incident_class not in CLASSES:
            self._playbooks.start(incident)
            return
        job = self._site.fleet.jobs.get(incident.job)
        later = job is not None and any(rank.keeps for _, rank in self._site.fleet.ranks(job))
        if not later:
            self._playbooks.start(incident)
        self._site.spawn(self._begin(incident, later=later), f"head start {incident.id}")

    async def _begin(self, incident: Incident, *, later: bool) -> None:
        try:
            await self._acts.head_start(incident, keeps=later)
        except HoldfastError as error:
            log.info("%s: no head start: %s", incident.id, error)
        finally:
            if later:
                self._playbooks.start(incident)

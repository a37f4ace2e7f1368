"""Head starts of recoveries: the first acts, made while a new incident's playbook is being started."""

from __future__ import annotations

from holdfast.deployments.gateway.fleet.acts import Acts
from holdfast.deployments.gateway.site import Site, log
from holdfast.errors import HoldfastError
from holdfast.models.alert import Incident
from holdfast.operations.head_start import CLASSES


class HeadStarts:
    """Makes them in the background, one for each incident that is opened to be worked on."""

    def __init__(self, site: Site, acts: Acts) -> None:
        self._site, self._acts = site, acts

    def begin(self, incident: Incident) -> None:
        """Begin one, if the incident's class has any; returns at once."""
        if incident.incident_class in CLASSES:
            self._site.spawn(self._begin(incident), f"head start {incident.id}")

    async def _begin(self, incident: Incident) -> None:
        try:
            await self._acts.head_start(incident)
        except HoldfastError as error:
            log.info("%s: no head start: %s", incident.id, error)

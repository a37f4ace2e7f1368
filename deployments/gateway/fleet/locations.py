"""Where machines are, as their engine knows it (labels of Kubernetes nodes)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from holdfast.deployments.gateway.site import Site, log
from holdfast.drivers.base import Driver, Locates
from holdfast.errors import HoldfastError


class Locations:
    """Asks the driver now and then, and records what has changed."""

    def __init__(self, site: Site, driver: Callable[[], Driver]) -> None:
        self._site = site
        self._make = driver
        self._driver: Driver | None = None
        self._logged = ""

    async def tick(self) -> None:
        """Run one round."""
        try:
            self._driver = self._driver or await asyncio.to_thread(self._make)
            if not isinstance(self._driver, Locates):
                return
            found = await asyncio.to_thread(self._driver.locations)
        except HoldfastError as error:
            if str(error) != self._logged:
                log.warning("where machines are is not known from the driver: %s", error)
            self._logged = str(error)
            return
        self._logged = ""
        machines = self._site.fleet.machines
        changed = {
            name: where
            for name, where in found.items()
            if name in machines and dict(machines[name].location) != dict(where)
        }
        if changed:
            await asyncio.to_thread(self._site.ledger.locate, changed)

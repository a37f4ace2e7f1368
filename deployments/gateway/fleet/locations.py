"""Where machines are, as their engine knows it (labels of Kubernetes nodes)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from holdfast.deployments.gateway.fleet.engine import EngineQuestion
from holdfast.deployments.gateway.site import Site
from holdfast.drivers.base import Driver, Locates
from holdfast.models.location import Location


class Locations:
    """Asks the driver now and then, and records what has changed."""

    def __init__(self, site: Site, driver: Callable[[], Driver]) -> None:
        self._site = site
        unanswered = "where machines are is not known from the driver"
        self._engine = EngineQuestion(driver, _located, unanswered)

    async def tick(self) -> None:
        """Run one round."""
        found = await self._engine.answer() or {}
        machines = self._site.fleet.machines
        changed = {
            name: where
            for name, where in found.items()
            if name in machines and dict(machines[name].location) != dict(where)
        }
        if changed:
            await asyncio.to_thread(self._site.ledger.locate, changed)


def _located(driver: Driver) -> dict[str, Location] | None:
    return driver.locations() if isinstance(driver, Locates) else None

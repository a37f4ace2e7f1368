"""Where machines are, from the driver to the ledger."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.deployments.gateway.fleet.locations import Locations
from holdfast.errors import UnavailableError
from holdfast.testing.gateway_kit import Kit


async def test_the_drivers_locations_are_recorded(kit: Kit) -> None:
    """Those of machines that are known; what has not changed is not written."""
    job = await kit.running_job()
    first, second = job.machines[:2]
    found = {first: {"rack": "r1"}, "unknown": {"rack": "r2"}}
    driver: Any = SimpleNamespace(locations=lambda: dict(found))
    locations = Locations(kit.gateway.site, lambda: driver)
    await locations.tick()
    assert (kit.ledger.machine(first).location, kit.ledger.machine(second).location) == ({"rack": "r1"}, {})
    await kit.gateway.site.refresh()
    found[second] = {"rack": "r3"}
    await locations.tick()
    assert kit.ledger.machine(second).location == {"rack": "r3"}


async def test_a_driver_without_locations_or_that_is_away_is_left(
    kit: Kit, caplog: pytest.LogCaptureFixture
) -> None:
    """Logged once."""

    def away() -> dict[str, dict[str, str]]:
        raise UnavailableError("the API server does not answer")

    no_locations: Any = SimpleNamespace
    await Locations(kit.gateway.site, no_locations).tick()
    driver: Any = SimpleNamespace(locations=away)
    locations = Locations(kit.gateway.site, lambda: driver)
    with caplog.at_level(logging.WARNING):
        await locations.tick()
        await locations.tick()
    assert [each.message for each in caplog.records if "API server" in each.message] == [
        "where machines are is not known from the driver: the API server does not answer"
    ]

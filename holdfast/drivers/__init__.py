"""Cluster drivers: who supplies machines."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

from holdfast.errors import SettingsError

if TYPE_CHECKING:
    from holdfast.drivers.base import Driver
    from holdfast.settings import Settings


def modules(name: str) -> list[str]:
    """Return the modules that a process imports beforehand, so that its first use of driver ``name`` need not wait."""
    from holdfast import plugins  # noqa: PLC0415  (it imports the models)

    return [f"holdfast.drivers.{name}"] if name in plugins.OWN[plugins.EntryPoints.DRIVERS] else []


def from_settings(settings: Settings) -> Driver:
    """Return the driver that ``settings.driver`` names.

    Raises:
        SettingsError: there is no such driver, the package that brings it is broken, or it was written for a release
            whose evictions did not name an incarnation.
    """
    from holdfast import plugins  # noqa: PLC0415  (it imports the models)

    driver: Driver = plugins.make_one(plugins.EntryPoints.DRIVERS, settings.driver, settings)
    _require_fenced(settings.driver, driver)
    return driver


def _require_fenced(name: str, driver: Driver) -> None:
    """Refuse at the start what would fail in the middle of a recovery."""
    evict = getattr(driver, "evict", None)
    if callable(evict) and "incarnation" not in inspect.signature(evict).parameters:
        raise SettingsError(
            f"HOLDFAST_DRIVER = {name!r}: its evict() does not take the incarnation that is meant, expected "
            "evict(machine, scope, reason, incarnation=''). Use a newer release of the package that brings it."
        )

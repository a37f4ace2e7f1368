"""Cluster drivers: who supplies machines."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.drivers.base import Driver
    from holdfast.settings import Settings


def from_settings(settings: Settings) -> Driver:
    """The driver that ``settings.driver`` names.

    Raises:
        SettingsError: there is no such driver.
    """
    from holdfast.drivers.local import LocalDriver  # noqa: PLC0415  (each engine's imports stay its own)
    from holdfast.errors import SettingsError  # noqa: PLC0415

    if settings.driver != "local":
        raise SettingsError(f"setting HOLDFAST_DRIVER = {settings.driver!r}: expected 'local'.")
    return LocalDriver(settings.home, host=settings.host)

"""Cluster drivers: who supplies machines."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.errors import SettingsError

if TYPE_CHECKING:
    from holdfast.drivers.base import Driver
    from holdfast.settings import Settings


BUILT_IN = ("local", "slurm", "kubernetes")


def modules(name: str) -> list[str]:
    """What a process imports beforehand, so that its first use of driver ``name`` need not wait."""
    return [f"holdfast.drivers.{name}"] if name in BUILT_IN else []


def from_settings(settings: Settings) -> Driver:
    """The driver that ``settings.driver`` names.

    Raises:
        SettingsError: there is no such driver, or the package that brings it is broken.
    """
    from holdfast import plugins  # noqa: PLC0415
    from holdfast.drivers.local import LocalDriver  # noqa: PLC0415  (each engine's imports stay its own)

    if settings.driver == "local":
        return LocalDriver(settings.home, host=settings.host)
    if settings.driver == "slurm":
        from holdfast.drivers.slurm import SlurmDriver  # noqa: PLC0415

        return SlurmDriver(settings)
    if settings.driver == "kubernetes":
        return _kubernetes(settings)
    driver: Driver = plugins.make_one(plugins.Group.DRIVERS, settings.driver, settings, beside=BUILT_IN)
    return driver


def _kubernetes(settings: Settings) -> Driver:
    try:
        from holdfast.drivers.kubernetes import KubernetesDriver  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise SettingsError(
            f"HOLDFAST_DRIVER = 'kubernetes': {error}. pip install 'holdfast[kubernetes]'"
        ) from None
    return KubernetesDriver.from_settings(settings)

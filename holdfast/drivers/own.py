"""Holdfast's own drivers, each made from the settings; each one's imports stay its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.errors import SettingsError

if TYPE_CHECKING:
    from holdfast.drivers.base import Driver
    from holdfast.settings import Settings


def local(settings: Settings) -> Driver:
    """Return the driver of machines as process trees on this host."""
    from holdfast import envfile  # noqa: PLC0415
    from holdfast.drivers.local import LocalDriver  # noqa: PLC0415

    return LocalDriver(settings.home, host=settings.host, environment=envfile.chosen(settings))


def slurm(settings: Settings) -> Driver:
    """Return the driver of a Slurm cluster.

    Raises:
        SettingsError: an option cannot be understood, or the batch script is not there.
    """
    from holdfast.drivers.slurm import SlurmDriver  # noqa: PLC0415

    return SlurmDriver(settings)


def kubernetes(settings: Settings) -> Driver:
    """Return the driver of a Kubernetes cluster.

    Raises:
        SettingsError: the extra is not installed, or there is no usable kubeconfig.
    """
    try:
        from holdfast.drivers.kubernetes import KubernetesDriver  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise SettingsError(
            f"HOLDFAST_DRIVER = 'kubernetes': {error}. pip install 'holdfast[kubernetes]'"
        ) from None
    return KubernetesDriver.from_settings(settings)

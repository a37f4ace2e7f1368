"""Ports of the embedded services: checked before anything is started."""

from __future__ import annotations

import socket

from holdfast.errors import SettingsError
from holdfast.listen import family_of
from holdfast.settings import Settings
from holdfast.tls import require_tls


def check(settings: Settings) -> None:
    """Check that all ports that the embedded services need are free, and may be listened on.

    Raises:
        SettingsError: one is not; the message names it and what to do.
    """
    if not (settings.gateway_url and settings.prefect_api_url):
        require_tls(settings, settings.host, "HOLDFAST_HOST")
    needed = {}
    if not settings.gateway_url:
        needed["gateway"] = settings.port
    if not settings.prefect_api_url:
        needed["Prefect server"] = settings.port + 1
    if settings.embedded_s3:
        needed["S3 server"] = settings.port + 2
    for service, port in needed.items():
        try:
            # With SO_REUSEADDR, as the services do: connections of a former run that still linger do not count.
            socket.create_server((settings.host, port), family=family_of(settings.host)).close()
        except OSError as error:
            raise SettingsError(
                f"port {port} on {settings.host}, which the {service} needs: {error.strerror}. Stop what listens "
                "there, or choose three free ports in a row by their first: `holdfast up --port N`."
            ) from None

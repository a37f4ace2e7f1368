"""Environment of every process of ours that talks to Prefect: set before Prefect is imported."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from holdfast import proxies, secret
from holdfast.paths import run_dir, shm_root
from holdfast.settings import Settings

SOCKET_BYTES = 107
_LEASES = "prefect.server.concurrency.lease_storage.filesystem"


def quiet_environment(settings: Settings) -> dict[str, str]:
    """Return the environment of every process with Prefect in it, wherever the API is: quiet logs, no calls home."""
    home = settings.home.resolve()
    return {
        "HOLDFAST_HOME": str(home),
        "PREFECT_HOME": str(home / "prefect"),
        "PREFECT_PROFILES_PATH": str(home / "prefect" / "profiles.toml"),
        "PREFECT_CLIENT_SERVER_VERSION_CHECK_ENABLED": "false",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_TELEMETRY_ENABLE_RESOURCE_METRICS": "false",
        "DO_NOT_TRACK": "1",
        "PREFECT_LOGGING_LEVEL": os.environ.get("PREFECT_LOGGING_LEVEL", "INFO"),
        "PREFECT_LOGGING_COLORS": "false",
    }


def client_environment(settings: Settings) -> dict[str, str]:
    """Return the environment of clients of the Prefect API: its URL, its credentials, quiet logs, no calls home.

    ``PREFECT_API_URL`` is always set: without it each process would start a server of its own (7 to 12 s).
    The version check is off because it costs every short-lived client one more request.

    Raises:
        SettingsError: the file with the credentials cannot be used.
    """
    auth, ca = secret.prefect_auth(settings), _authority(settings)
    own = () if settings.prefect_api_url else (*proxies.LOOPBACK, settings.host)
    return quiet_environment(settings) | {
        **proxies.exceptions(os.environ, own),
        **({"PREFECT_API_AUTH_STRING": auth} if auth else {}),
        **({"PREFECT_API_SSL_CERT_FILE": ca} if ca else {}),
        "PREFECT_API_URL": settings.prefect_api,
    }


def adopt(settings: Settings) -> None:
    """Make this process a client of the site's Prefect API, before it imports Prefect.

    Nothing is changed where this was done before: other threads may read the environment meanwhile.
    """
    own = client_environment(settings)
    for name in foreign(settings, os.environ):
        if name not in own:
            del os.environ[name]
    os.environ.update({name: value for name, value in own.items() if os.environ.get(name) != value})


def foreign(settings: Settings, environment: Mapping[str, str]) -> list[str]:
    """List variables of a user's own Prefect, which the embedded server and its clients must not take for theirs."""
    if settings.prefect_api_url:
        return []
    return [
        name
        for name in environment
        if name.startswith("PREFECT_") and not name.startswith("PREFECT_LOGGING_")
    ]


def client_settings(settings: Settings) -> dict[Any, Any]:
    """Return the client's Prefect settings, for where Prefect may have been imported under another environment."""
    from prefect.settings import (  # noqa: PLC0415
        PREFECT_API_AUTH_STRING,
        PREFECT_API_SSL_CERT_FILE,
        PREFECT_API_URL,
    )

    ca = _authority(settings)
    return {
        **({PREFECT_API_SSL_CERT_FILE: ca} if ca else {}),
        PREFECT_API_URL: settings.prefect_api,
        PREFECT_API_AUTH_STRING: secret.prefect_auth(settings) or None,
    }


def server_environment(settings: Settings) -> dict[str, str]:
    """Return the environment of the embedded Prefect server: credentials, database, leases that outlive a restart.

    Concurrency leases in memory leak their slots when the server restarts, hence the file system.
    """
    home = settings.home.resolve()
    return client_environment(settings) | {
        **(
            {}
            if _may_write_beside_prefect()
            else {"PREFECT_UI_STATIC_DIRECTORY": str(home / "prefect" / "ui")}
        ),
        **{name: str(path.absolute()) for name, path in _certificate(settings).items()},
        "PREFECT_SERVER_API_AUTH_STRING": secret.prefect_auth(settings),
        "PREFECT_API_DATABASE_CONNECTION_URL": settings.prefect_database_url
        or f"sqlite+aiosqlite:///{home / 'prefect' / 'prefect.db'}",
        "PREFECT_SERVER_API_HOST": settings.host,
        "PREFECT_SERVER_API_PORT": str(settings.port + 1),
        # What the UI's own requests go to, and what links to runs in notifications begin with.
        "PREFECT_UI_API_URL": f"{settings.prefect_ui}/api",
        "PREFECT_UI_URL": settings.prefect_ui,
        "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": _LEASES,
        "PREFECT_SERVER_LOGGING_LEVEL": "WARNING",
        # Shows task runs in the UI within a second instead of five.
        "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_FLUSH_INTERVAL": "1",
        "PREFECT_SERVER_SERVICES_EVENT_PERSISTER_FLUSH_INTERVAL": "2",
    }


def _authority(settings: Settings) -> str:
    """Return the CA of the embedded server; empty: no TLS, or the API is elsewhere and Prefect's own settings apply."""
    return str(settings.tls_ca.absolute()) if settings.tls_ca and not settings.prefect_api_url else ""


def _may_write_beside_prefect() -> bool:
    """Return whether the server may write its UI's files into its package, its default: copying takes a second."""
    found = importlib.util.find_spec("prefect")
    return found is not None and os.access(Path(str(found.origin)).parent / "server", os.W_OK)


def _certificate(settings: Settings) -> dict[str, Path]:
    """Return the embedded server's TLS files, as :mod:`holdfast.deployments.local.prefect_server` reads them."""
    files = {
        "HOLDFAST_TLS_CERT": settings.tls_cert,
        "HOLDFAST_TLS_KEY": settings.tls_key,
        "HOLDFAST_TLS_CA": settings.tls_ca,
    }
    return {name: path for name, path in files.items() if path}


def socket_path(home: Path) -> Path:
    """Return the Unix socket that takes ids of flow runs to start at once.

    The kernel takes names of 107 bytes at most: of a home that lies deeper it is in the site's shared memory.
    """
    path = run_dir(home) / "worker.sock"
    return path if len(os.fsencode(path)) <= SOCKET_BYTES else shm_root(home) / "worker.sock"

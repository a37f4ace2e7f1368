"""Environment of every process of ours that talks to Prefect: set before Prefect is imported."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from holdfast.paths import run_dir
from holdfast.settings import Settings

_LEASES = "prefect.server.concurrency.lease_storage.filesystem"


def client_environment(settings: Settings) -> dict[str, str]:
    """What clients of the Prefect API need: where it is, quiet logs, no calls home.

    ``PREFECT_API_URL`` is always set: without it each process would start a server of its own (7 to 12 s).
    The version check is off because it costs every short-lived client one more request.
    """
    home = settings.home.resolve()
    auth = settings.prefect_auth.get_secret_value()
    return {
        **({"PREFECT_API_AUTH_STRING": auth} if auth else {}),
        "HOLDFAST_HOME": str(home),
        "PREFECT_HOME": str(home / "prefect"),
        "PREFECT_PROFILES_PATH": str(home / "prefect" / "profiles.toml"),
        "PREFECT_API_URL": settings.prefect_api,
        "PREFECT_CLIENT_SERVER_VERSION_CHECK_ENABLED": "false",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_TELEMETRY_ENABLE_RESOURCE_METRICS": "false",
        "DO_NOT_TRACK": "1",
        "PREFECT_LOGGING_LEVEL": os.environ.get("PREFECT_LOGGING_LEVEL", "INFO"),
        "PREFECT_LOGGING_COLORS": "false",
    }


def client_settings(settings: Settings) -> dict[Any, Any]:
    """The same where Prefect may have been imported before, under another environment."""
    from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL  # noqa: PLC0415

    return {
        PREFECT_API_URL: settings.prefect_api,
        PREFECT_API_AUTH_STRING: settings.prefect_auth.get_secret_value() or None,
    }


def server_environment(settings: Settings) -> dict[str, str]:
    """What the embedded Prefect server needs: its database, leases that outlive a restart.

    Concurrency leases in memory leak their slots when the server restarts, hence the file system.
    """
    home = settings.home.resolve()
    auth = settings.prefect_auth.get_secret_value()
    return client_environment(settings) | {
        **({"PREFECT_SERVER_API_AUTH_STRING": auth} if auth else {}),
        "PREFECT_API_DATABASE_CONNECTION_URL": settings.prefect_database_url
        or f"sqlite+aiosqlite:///{home / 'prefect' / 'prefect.db'}",
        "PREFECT_SERVER_API_HOST": settings.host,
        "PREFECT_SERVER_API_PORT": str(settings.port + 1),
        "PREFECT_UI_API_URL": settings.prefect_api,
        "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": _LEASES,
        "PREFECT_SERVER_LOGGING_LEVEL": "WARNING",
        # Shows task runs in the UI within a second instead of five.
        "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_FLUSH_INTERVAL": "1",
        "PREFECT_SERVER_SERVICES_EVENT_PERSISTER_FLUSH_INTERVAL": "2",
    }


def socket_path(home: Path) -> Path:
    """Unix socket that takes ids of flow runs to start at once."""
    return run_dir(home) / "worker.sock"

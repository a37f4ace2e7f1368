"""The embedded Prefect server, started as `holdfast up` does: a client without credentials can do nothing."""

from __future__ import annotations

import asyncio
import json
import os
import ssl
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake
from websockets.typing import Subprotocol

from holdfast import secret, tls
from holdfast.deployments.local import services
from holdfast.settings import Settings
from tests.certificates import Authority
from tests.e2e.waiting import end, free_ports, wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

OPEN = {"/health", "/ready"}
STREAMS = (
    "events/in",
    "events/out",
    "logs/out",
    "task_runs/subscriptions/scheduled",
    "work_pools/p/workers/connect",
)
PREFECT = Subprotocol("prefect")
EVICT = {"event": "holdfast.evict", "resource": {"prefect.resource.id": "machine.m0"}, "id": "0" * 32}


@dataclass(frozen=True)
class Server:
    """It, and how the site's own processes call it."""

    settings: Settings
    ca: ssl.SSLContext
    pki: Authority

    @property
    def origin(self) -> str:
        return self.settings.prefect_api.removesuffix("/api")

    def opened(self, stream: str, **more: Any) -> connect:
        """Wait for the server of a busy host longer than the library does."""
        url = f"{self.origin.replace('https', 'wss')}/api/{stream}"
        return connect(url, ssl=self.ca, open_timeout=90, **more)

    def client(self, auth: str = "") -> httpx.Client:
        user, _, password = auth.partition(":")
        return httpx.Client(
            base_url=self.origin, auth=(user, password) if auth else None, timeout=120, verify=self.ca
        )


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    home = tmp_path_factory.mktemp("home")
    pki = Authority(home / "pki")
    cert, key = pki.certify("site", "127.0.0.1")
    settings = Settings(home=home, port=free_ports(), tls_cert=cert, tls_key=key, tls_ca=pki.ca)
    secret.create(settings.secret_path)
    secret.create_prefect_auth(settings)
    (service,) = [each for each in services.embedded(settings) if each.name == "prefect"]
    clean = {
        name: value for name, value in os.environ.items() if not name.startswith(("HOLDFAST_", "PREFECT_"))
    }
    with (home / "log").open("wb") as log:
        process = subprocess.Popen(service.command, env=clean | service.env, stdout=log, stderr=log)
    try:
        wait_for(lambda: f"Prefect answers: {(home / 'log').read_text()[-2000:]}", service.healthy, 200)
        context = tls.of(settings).client()
        assert context
        yield Server(settings, context, pki)
    finally:
        end(process)


def test_every_route_asks_for_the_credentials(server: Server) -> None:
    """Reading, writing, events, runs: 401 without them and with wrong ones, and nothing came of it."""
    with server.client(secret.prefect_auth(server.settings)) as known:
        paths = known.get("/api/openapi.json").json()["paths"]
        assert len(paths) > 100, "the routes are known"
        for auth in ("", "holdfast:wrong"):
            with server.client(auth) as stranger:
                # Every method of each would be slow: a route is asked by one of its own.
                for path, methods in paths.items():
                    method = sorted(methods)[-1].upper()
                    answer = stranger.request(method, "/api" + path.replace("{", "").replace("}", ""))
                    assert answer.status_code == (200 if path in OPEN else 401), (method, path)
                assert stranger.post("/api/events", json=[EVICT]).status_code == 401
        counted = known.post("/api/events/filter", json={"filter": {"event": {"name": ["holdfast.evict"]}}})
        assert counted.json()["total"] == 0
        assert known.get("/api/admin/version").is_success


@pytest.mark.parametrize("stream", STREAMS)
async def test_every_stream_asks_for_the_credentials(server: Server, stream: str) -> None:
    """Plain websockets, Prefect's own subprotocol without a token, and with a wrong one are closed unheard."""
    with pytest.raises(InvalidHandshake):
        await server.opened(stream)
    for token in (None, "holdfast:wrong"):
        async with server.opened(stream, subprotocols=[PREFECT]) as socket:
            await socket.send(json.dumps({"type": "auth", "token": token}))
            with pytest.raises(ConnectionClosed):
                await asyncio.wait_for(socket.recv(), 90)


async def test_the_site_itself_is_let_in_by_stream(server: Server) -> None:
    """The control of the test above."""
    async with server.opened("events/in", subprotocols=[PREFECT]) as socket:
        await socket.send(json.dumps({"type": "auth", "token": secret.prefect_auth(server.settings)}))
        assert json.loads(await asyncio.wait_for(socket.recv(), 90)) == {"type": "auth_success"}


def test_it_speaks_tls_alone_and_takes_a_renewed_certificate(server: Server) -> None:
    """As gateway and agents do."""
    with pytest.raises(httpx.HTTPError):
        httpx.get(server.origin.replace("https", "http"), timeout=10)
    before = ssl.get_server_certificate(("127.0.0.1", server.settings.port + 1))
    server.pki.certify("site", "127.0.0.1")
    assert ssl.get_server_certificate(("127.0.0.1", server.settings.port + 1)) != before


def test_nothing_secret_is_on_its_command_line(server: Server) -> None:
    """By the environment only."""
    password = secret.prefect_auth(server.settings).partition(":")[2]
    assert len(password) >= 32
    assert not any(password in word for each in services.embedded(server.settings) for word in each.command)

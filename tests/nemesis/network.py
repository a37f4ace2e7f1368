"""HTTP between hosts: real requests to real applications, over a network that delays, cuts, and repeats."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import httpx

from tests.nemesis.scheduler import Process, Scheduler

FASTEST_S, SLOWEST_S = 0.0005, 0.004


class Network:
    """Listeners by address, and the open ways between hosts."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.down: set[str] = set()
        """Hosts without power: nothing comes back from them."""
        self.slower_s = 0.0
        self.repeats = 0.0
        """Share of requests that arrive twice, the second time later."""
        self.repeated = 0
        self._cuts: list[tuple[frozenset[str], frozenset[str]]] = []
        self._listening: dict[str, tuple[Process, Any]] = {}

    def listen(self, address: str, process: Process, app: Any) -> None:
        """``app`` answers there as long as the process lives."""
        self._listening[address] = process, app

    def cut(self, source: frozenset[str], target: frozenset[str]) -> Callable[[], None]:
        """Lose what goes that way, until what is returned is called."""
        pair = source, target
        self._cuts.append(pair)
        return lambda: self._cuts.remove(pair)

    def is_open(self, source: str, target: str) -> bool:
        """Whether a packet from one host arrives at another."""
        if source == target:
            return True
        if source in self.down or target in self.down:
            return False
        return not any(source in a and target in b for a, b in self._cuts)

    def delay_s(self) -> float:
        """Of one packet."""
        extra = self.slower_s * self.scheduler.random.random()
        return FASTEST_S + (SLOWEST_S - FASTEST_S) * self.scheduler.random.random() + extra

    def server(self, address: str) -> tuple[Process, Any] | None:
        """The process that listens there now."""
        found = self._listening.get(address)
        return found if found and found[0].alive else None


class Transport(httpx.AsyncBaseTransport):
    """The way out of one process."""

    def __init__(self, network: Network, process: Process) -> None:
        self._network, self._process = network, process

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send it; the answer, or what a socket would say."""
        timeout = request.extensions.get("timeout") or {}
        network, me, there = self._network, self._process.host, request.url.host
        connect_s, read_s = timeout.get("connect") or 5.0, timeout.get("read") or 5.0
        if not (network.is_open(me, there) and network.is_open(there, me)):
            await asyncio.sleep(connect_s)
            raise httpx.ConnectTimeout("no connection in time")
        await asyncio.sleep(network.delay_s())
        address = f"{there}:{request.url.port or 80}"
        found = network.server(address)
        if found is None:
            raise httpx.ConnectError("connection refused") from ConnectionRefusedError(111, "refused")
        server, app = found
        reply: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        exchange = _Exchange(network, self._process, server, reply, await request.aread())
        exchange.send(app, request)
        if network.repeats and network.scheduler.random.random() < network.repeats:
            network.repeated += 1
            late_s = 2 * network.scheduler.random.random()
            network.scheduler.after(late_s, lambda: exchange.send(app, request))
        try:
            async with asyncio.timeout(read_s):
                status, headers, content = await reply
        except TimeoutError:
            raise httpx.ReadTimeout("no answer in time") from None
        return httpx.Response(status, headers=headers, content=content, request=request)


class _Exchange:
    """One request and its answer."""

    def __init__(
        self, network: Network, client: Process, server: Process, reply: asyncio.Future[Any], body: bytes
    ) -> None:
        self._network, self._client, self._server = network, client, server
        self._reply, self._body = reply, body
        server.on_kill.append(self._broken)

    def send(self, app: Any, request: httpx.Request) -> None:
        """Have it arrive."""
        network = self._network

        def arrive() -> None:
            if self._server.alive and network.is_open(self._client.host, self._server.host):
                self._server.start(self._serve(app, request))

        network.scheduler.after(network.delay_s(), arrive)

    async def _serve(self, app: Any, request: httpx.Request) -> None:
        answer = await call(app, request, self._body)
        network = self._network
        if answer[0] == httpx.codes.INTERNAL_SERVER_ERROR:
            network.scheduler.complaints.append(f"{request.url.path} failed: {answer[2][:300].decode()}")

        def arrive() -> None:
            if network.is_open(self._server.host, self._client.host):
                self._settle(answer, None)

        network.scheduler.after(network.delay_s(), arrive)

    def _broken(self) -> None:
        """The server's process died: its kernel closes the connection."""
        if self._network.is_open(self._server.host, self._client.host):
            self._network.scheduler.after(
                self._network.delay_s(), lambda: self._settle(None, httpx.ReadError("connection reset"))
            )

    def _settle(self, answer: Any, error: Exception | None) -> None:
        if not self._client.alive or self._reply.done():
            return
        if error is not None:
            self._reply.set_exception(error)
        else:
            self._reply.set_result(answer)


async def call(app: Any, request: httpx.Request, body: bytes) -> tuple[int, Any, bytes]:
    """Status, headers and body that an ASGI application answers with."""
    url = request.url
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": request.method,
        "headers": [(name.lower(), value) for name, value in request.headers.raw],
        "scheme": "http",
        "path": url.path,
        "raw_path": url.raw_path.partition(b"?")[0],
        "query_string": url.query,
        "server": (url.host, url.port),
        "client": ("peer", 1),
        "root_path": "",
    }
    sent = False
    status, headers, parts = 500, [], []

    async def receive() -> dict[str, Any]:
        nonlocal sent
        if sent:
            return {"type": "http.disconnect"}
        sent = True
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Any) -> None:
        nonlocal status, headers
        if message["type"] == "http.response.start":
            status, headers = message["status"], message.get("headers", [])
        else:
            parts.append(message.get("body", b""))

    await app(scope, receive, send)
    return status, headers, b"".join(parts)


class Client(httpx.AsyncClient):
    """A client of one process; requests go straight to the network."""

    def __init__(self, network: Network, process: Process, timeout: float = 5.0) -> None:
        super().__init__(
            transport=httpx.MockTransport(lambda _: httpx.Response(500)), trust_env=False, timeout=timeout
        )
        self._way = Transport(network, process)

    async def send(self, request: httpx.Request, **_: Any) -> httpx.Response:
        """To the network."""
        return await self._way.handle_async_request(request)

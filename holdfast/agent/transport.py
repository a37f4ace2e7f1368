"""Connections to very many agents, through aiohttp: a command costs its caller half of what it does by httpx alone.

httpx looks through all connections of its pool several times for every request: to 100 agents a command costs 10 ms of
processor time each, to 1,200 a stop of all would take minutes.
"""

from __future__ import annotations

import resource
import ssl
import time
from collections.abc import Hashable, Mapping
from typing import Any

import aiohttp
import httpx
import yarl

IDLE_S = 30.0
"""A connection is used again within so long; agents keep theirs longer (:data:`holdfast.listen.KEEP_ALIVE_S`)."""
_LEAST, _MOST = 64, 4096
_PER_AGENT = 16
_OURS = ("Accept", "Accept-Encoding", "User-Agent")
"""Headers that no agent needs."""


class AgentTransport(httpx.AsyncBaseTransport):
    """Transport of an httpx client that calls agents. Answers are read whole before they are returned."""

    def __init__(self, verify: ssl.SSLContext | bool = True, most_open: int | None = None) -> None:
        """``most_open``: agents with an idle connection; None: a quarter of the files that this process may open."""
        self._verify = verify
        self._most = most_open or max(_LEAST, min(_MOST, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4))
        self._kept: dict[Hashable, float] = {}
        """Agents whose connections stay open -> when they were last used."""
        self._session: aiohttp.ClientSession | None = None

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request, over an open connection of its agent if there is one."""
        if self._session is None:
            connector = aiohttp.TCPConnector(
                limit=0, limit_per_host=_PER_AGENT, keepalive_timeout=IDLE_S, ssl=self._verify
            )
            self._session = aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar())
        body = await request.aread()
        try:
            async with self._session.request(
                request.method,
                yarl.URL(str(request.url), encoded=True),
                headers=request.headers if self._keeps(request.url) else _closing(request.headers),
                skip_auto_headers=_OURS,
                data=body or None,
                allow_redirects=False,
                timeout=_timeout(request.extensions.get("timeout", {})),
                server_hostname=request.extensions.get("sni_hostname"),
            ) as answer:
                content = await answer.read()
        except (aiohttp.ClientError, TimeoutError) as error:
            raise _as_httpx(error) from error
        return httpx.Response(answer.status, headers=answer.raw_headers, content=content, request=request)

    async def aclose(self) -> None:
        """Close all connections."""
        if self._session is not None:
            await self._session.close()

    def _keeps(self, url: httpx.URL) -> bool:
        """Return whether the connection may stay open: there may be more agents than files that may be open."""
        agent, now = (url.raw_host, url.port), time.monotonic()
        if agent not in self._kept and len(self._kept) >= self._most:
            self._kept = {each: used for each, used in self._kept.items() if now - used < IDLE_S}
            if len(self._kept) >= self._most:
                return False
        self._kept[agent] = now
        return True


class AgentsClient(httpx.AsyncClient):
    """A client of very many agents. They set no cookies and redirect no request: not checking saves a quarter."""

    def __init__(self, verify: ssl.SSLContext | bool = True) -> None:
        """``verify`` as httpx has it."""
        self._agents = AgentTransport(verify)
        super().__init__(transport=self._agents, trust_env=False)

    async def send(self, request: httpx.Request, **_: Any) -> httpx.Response:
        """Send straight to the agent."""
        return await self._agents.handle_async_request(request)


def _closing(headers: httpx.Headers) -> httpx.Headers:
    changed = headers.copy()
    changed["Connection"] = "close"
    return changed


def _timeout(given: Mapping[str, Any]) -> aiohttp.ClientTimeout:
    """Return the timeouts: httpx bounds each read and the way to the host, not the whole."""
    return aiohttp.ClientTimeout(
        total=None, connect=given.get("pool"), sock_connect=given.get("connect"), sock_read=given.get("read")
    )


def _as_httpx(error: Exception) -> httpx.TransportError:
    """Return the same error in httpx's classes, from which callers derive its meaning for a machine."""
    if isinstance(error, aiohttp.ConnectionTimeoutError):
        return httpx.ConnectTimeout("no connection in time")
    if isinstance(error, TimeoutError):
        return httpx.ReadTimeout("no answer in time")
    if isinstance(error, aiohttp.ClientConnectorError):
        return httpx.ConnectError(str(error.os_error))
    if isinstance(error, aiohttp.ClientConnectionError | aiohttp.ClientPayloadError):
        return httpx.ReadError(str(error) or type(error).__name__)
    return httpx.RemoteProtocolError(str(error))

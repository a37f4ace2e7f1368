"""Connections to very many agents: a pool for each of them, and not too many open at once.

One pool for all, as an httpx client has it, looks through all of its connections several times for every request: to
100 agents a command costs 10 ms of processor time each, to 1,200 a stop of all would take minutes.
"""

from __future__ import annotations

import asyncio
import resource
import ssl
from collections import OrderedDict
from dataclasses import dataclass

import httpx

IDLE_S = 30.0
"""A connection is used again within so long; agents keep theirs longer (:data:`holdfast.listen.KEEP_ALIVE_S`)."""
_LEAST, _MOST = 64, 4096


@dataclass
class _Pool:
    """Connections to one agent."""

    transport: httpx.AsyncHTTPTransport
    users: int = 0


class AgentTransport(httpx.AsyncBaseTransport):
    """For an httpx client that calls agents. Answers are read whole before they are handed on."""

    def __init__(self, verify: ssl.SSLContext | bool = True, most_open: int | None = None) -> None:
        """``most_open``: agents with an idle connection; None: a quarter of the files that this process may open."""
        self._verify = verify
        self._most = most_open or max(_LEAST, min(_MOST, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4))
        self._pools: OrderedDict[tuple[bytes, bytes, int | None], _Pool] = OrderedDict()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send it over a connection of its agent's own pool."""
        pool = self._pool_of(request.url)
        pool.users += 1
        try:
            response = await pool.transport.handle_async_request(request)
            await response.aread()
        finally:
            pool.users -= 1
            await self._close_oldest()
        return response

    async def aclose(self) -> None:
        """Close all connections."""
        pools, self._pools = self._pools, OrderedDict()
        await asyncio.gather(*(pool.transport.aclose() for pool in pools.values()))

    def _pool_of(self, url: httpx.URL) -> _Pool:
        key = (url.raw_scheme, url.raw_host, url.port)
        if key not in self._pools:
            limits = httpx.Limits(max_connections=16, keepalive_expiry=IDLE_S)
            transport = httpx.AsyncHTTPTransport(verify=self._verify, trust_env=False, limits=limits)
            self._pools[key] = _Pool(transport)
        self._pools.move_to_end(key)
        return self._pools[key]

    async def _close_oldest(self) -> None:
        """Those that were not used for longest; one that is in use stays."""
        if len(self._pools) <= self._most:
            return
        idle = [key for key, pool in self._pools.items() if not pool.users]
        for key in idle[: len(self._pools) - self._most]:
            await self._pools.pop(key).transport.aclose()

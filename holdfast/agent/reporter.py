"""The agent's voice: registration, heartbeats, and events, to the gateway over HTTP."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable

import httpx
from pydantic import BaseModel

from holdfast.agent.client import raise_for
from holdfast.agent.metrics import Metrics
from holdfast.errors import HoldfastError, StaleError, UnavailableError, UnknownError
from holdfast.models.agent import Heartbeat, Register, Report

_log = logging.getLogger(__name__)

_BUFFER = 1000  # events kept while the gateway is away; the oldest go first
_TIMEOUT_S = 3.0
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.05, 2.0


class Reporter:
    """Events go at once and in order, and are kept and sent again while the gateway is away."""

    def __init__(
        self, gateway: str, secret: str, metrics: Metrics, http: httpx.AsyncClient | None = None
    ) -> None:
        self._http = http or httpx.AsyncClient(base_url=gateway, timeout=_TIMEOUT_S)
        self._headers = {"Authorization": f"Bearer {secret}", "Content-Type": "application/json"}
        self._gateway = gateway
        self._metrics = metrics
        self._events: deque[Report] = deque()
        self._more = asyncio.Event()
        self._message: Register | None = None

    def report(self, report: Report) -> None:
        """Have an event sent; returns at once."""
        if len(self._events) >= _BUFFER:
            self._events.popleft()
            self._metrics.reports_dropped.inc()
        self._events.append(report)
        self._more.set()

    async def run(
        self,
        message: Register,
        interval_s: float,
        heartbeat: Callable[[], Heartbeat],
        delivered: Callable[[Heartbeat], None],
    ) -> None:
        """Register, then send heartbeats and events for ever.

        Raises:
            StaleError: the gateway knows a newer incarnation of this machine, or evicted it.
        """
        self._message = message
        await self._register()
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._beat(interval_s, heartbeat, delivered))
                tasks.create_task(self._send_events())
        except* StaleError as group:
            raise group.exceptions[0] from None

    async def close(self) -> None:
        """Close the connection."""
        await self._http.aclose()

    async def _register(self) -> None:
        assert self._message is not None
        await self._deliver("/v1/agents/register", self._message)
        _log.info("registered at %s", self._gateway)

    async def _beat(
        self, interval_s: float, heartbeat: Callable[[], Heartbeat], delivered: Callable[[Heartbeat], None]
    ) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            beat = heartbeat()
            try:
                await self._post("/v1/agents/heartbeat", beat)
                delivered(beat)
            except StaleError:
                raise
            except UnknownError:
                await self._register()
            except HoldfastError as error:
                self._metrics.heartbeats_failed.inc()
                _log.debug("heartbeat: %s", error)
            due = max(due + interval_s, loop.time())
            await asyncio.sleep(due - loop.time())

    async def _send_events(self) -> None:
        while True:
            await self._more.wait()
            self._more.clear()
            while self._events:
                report = self._events[0]
                await self._deliver("/v1/agents/events", report)
                # A full buffer may have dropped it meanwhile.
                if self._events and self._events[0] is report:
                    self._events.popleft()

    async def _deliver(self, path: str, body: BaseModel) -> None:
        """Post until it is taken, or refused for good."""
        wait_s = _FIRST_WAIT_S
        while True:
            try:
                await self._post(path, body)
                return
            except StaleError:
                raise
            except UnknownError:
                if body is self._message:
                    _log.warning("gateway %s does not know %s", self._gateway, path)
                else:
                    await self._register()
            except UnavailableError as error:
                _log.debug("%s: %s", path, error)
            except HoldfastError as error:
                _log.error("gateway %s refused %s: %s", self._gateway, path, error)
                if body is not self._message:
                    return
            await asyncio.sleep(wait_s)
            wait_s = min(_LONGEST_WAIT_S, wait_s * 2)

    async def _post(self, path: str, body: BaseModel) -> None:
        try:
            response = await self._http.post(path, content=body.model_dump_json(), headers=self._headers)
        except httpx.HTTPError as error:
            raise UnavailableError(f"gateway {self._gateway}: {type(error).__name__} {error}") from None
        if response.status_code >= 500:
            raise UnavailableError(f"gateway {self._gateway}: status {response.status_code}")
        raise_for(response)

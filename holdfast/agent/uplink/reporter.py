"""Reports of the agent to the gateway, over HTTP: registration, heartbeats, and events."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable

import httpx
from pydantic import BaseModel, ValidationError
from pydantic_core import to_json

from holdfast.agent.client import raise_for
from holdfast.agent.metrics import Metrics
from holdfast.agent.uplink.contact import Standing
from holdfast.agent.wire import whole_characters
from holdfast.errors import HoldfastError, StaleError, UnauthorizedError, UnavailableError, UnknownError
from holdfast.listen import CLIENT_KEEP_ALIVE_S
from holdfast.models import tolerant
from holdfast.models.agent import Heard, Heartbeat, Register, Report
from holdfast.policies.detect import silence
from holdfast.secret import Keys, keys
from holdfast.tls import PLAIN, Tls

_log = logging.getLogger(__name__)

_BUFFER = 1000  # events kept while the gateway is away; the oldest go first
_TIMEOUT_S = 3.0
_HURRY_S = 0.1
"""Between heartbeats at least, however much changes."""
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.05, 2.0


class Reporter:
    """Sends events at once and in order, and keeps and resends them while the gateway is away.

    ``gateway`` may be several URLs with commas between: the reporter stays with the one that answers.
    """

    def __init__(
        self,
        gateway: str,
        secret: str | Keys,
        metrics: Metrics,
        http: httpx.AsyncClient | None = None,
        tls: Tls = PLAIN,
        *,
        standing: Standing | None = None,
        on_answer: Callable[[Heard], None] = lambda _answer: None,
    ) -> None:
        """``standing`` records every heartbeat that was answered; ``on_answer`` takes the answers."""
        self._tls = tls
        self._standing = standing or Standing()
        self._take = on_answer
        self._hurry = asyncio.Event()
        self._http = http or httpx.AsyncClient(
            timeout=_TIMEOUT_S,
            # One connection for all heartbeats: a new one for each costs the gateway a handshake.
            limits=httpx.Limits(keepalive_expiry=CLIENT_KEEP_ALIVE_S),
            trust_env=False,  # the secret is for the gateway, and no proxy stands between heartbeats and it
            **tls.http(),
        )
        self._gateways = deque(url.strip().rstrip("/") for url in gateway.split(","))
        self._secret = keys(secret)
        self._metrics = metrics
        self._events: deque[Report] = deque()
        self._more = asyncio.Event()
        self._message: Register | None = None
        self._known = False

    def report(self, report: Report) -> None:
        """Have an event sent; returns at once."""
        if len(self._events) >= _BUFFER:
            self._events.popleft()
            self._metrics.reports_dropped.inc()
        self._events.append(report)
        self._more.set()

    def hurry(self) -> None:
        """Have the next heartbeat sent at once."""
        self._hurry.set()

    async def run(
        self,
        message: Register,
        interval_s: float,
        heartbeat: Callable[[], Heartbeat],
        delivered: Callable[[Heartbeat], None],
    ) -> None:
        """Register, then send heartbeats and events without end.

        Raises:
            StaleError: the gateway knows a newer incarnation of this machine, or evicted it.
            UnauthorizedError: the gateway does not take this machine's secret. Only before it knew the machine:
                later the ranks that run matter more, and the secret may be on its way.
        """
        self._message = message
        await self._register()
        self._known = True
        stale: StaleError | None = None
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._beat(interval_s, heartbeat, delivered))
                tasks.create_task(self._send_events())
        except* StaleError as group:
            stale = next(each for each in group.exceptions if isinstance(each, StaleError))
        if stale is not None:
            # Not above: until Python 3.11.3 an exception raised there comes out in a group of its own.
            raise stale

    async def probe_gateways(self, beat: Heartbeat, patience_s: float) -> None:
        """Try every gateway once more, each on a new connection; ``standing`` records whether one answers."""

        async def one(url: str) -> None:
            with contextlib.suppress(HoldfastError, httpx.HTTPError):
                async with httpx.AsyncClient(timeout=patience_s, trust_env=False, **self._tls.http()) as http:
                    await self._say(beat, http, url)

        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience_s):
                await asyncio.gather(*(one(url) for url in tuple(self._gateways)))

    async def close(self) -> None:
        """Close the connection."""
        await self._http.aclose()

    async def _register(self) -> None:
        assert self._message is not None
        await self._deliver("/v1/agents/register", self._message)
        _log.info("registered at %s", self._gateways[0])

    async def _beat(
        self, interval_s: float, heartbeat: Callable[[], Heartbeat], delivered: Callable[[Heartbeat], None]
    ) -> None:
        loop = asyncio.get_running_loop()
        due, broken = loop.time(), ""
        while True:
            self._hurry.clear()
            try:
                beat = heartbeat()
                await self._say(beat)
                delivered(beat)
            except StaleError:
                raise
            except UnknownError:
                await self._register()
            except HoldfastError as error:
                self._metrics.heartbeats_failed.inc()
                _log.debug("heartbeat: %s", error)
            except Exception as error:  # whatever it is: an agent that ends ends its ranks
                self._metrics.heartbeats_failed.inc()
                if broken != (broken := repr(error)):
                    _log.exception(
                        "heartbeat: it could not be made or its answer not be used; the next one is"
                    )
            due = max(due + interval_s, loop.time())
            await asyncio.sleep(min(_HURRY_S, due - loop.time()))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(due):
                    await self._hurry.wait()
                    due = loop.time()

    async def _say(self, beat: Heartbeat, http: httpx.AsyncClient | None = None, url: str = "") -> None:
        asked_at = time.monotonic()
        try:
            answer = (
                await self._send(http, url, beat) if http else await self._post("/v1/agents/heartbeat", beat)
            )
        except (StaleError, UnavailableError, UnauthorizedError):
            raise
        except HoldfastError:
            # It refuses the heartbeat, but it is there and accepts this machine's secret.
            self._standing.contacted(asked_at)
            raise
        granted = _granted(answer)
        if not self._standing.answered(asked_at, granted):
            if http is None:
                self._next_gateway()
            raise UnavailableError("another gateway leads since: what this one answers does not count")
        self._take(granted)

    async def _send(self, http: httpx.AsyncClient, url: str, beat: Heartbeat) -> httpx.Response:
        headers = {"Authorization": self._secret.header, "Content-Type": "application/json"}
        answer = await http.post(f"{url}/v1/agents/heartbeat", content=_written(beat), headers=headers)
        raise_for(answer)
        return answer

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
        """Post until it is accepted, or refused for good."""
        wait_s = _FIRST_WAIT_S
        while True:
            try:
                await self._post(path, body)
                return
            except StaleError:
                raise
            except UnknownError:
                if body is self._message:
                    _log.warning("gateway %s does not know %s", self._gateways[0], path)
                else:
                    await self._register()
            except UnavailableError as error:
                _log.debug("%s: %s", path, error)
            except HoldfastError as error:
                if isinstance(error, UnauthorizedError) and not self._known:
                    raise UnauthorizedError(
                        f"gateway {self._gateways[0]} does not accept this machine's secret: copy the gateway's secret "
                        "file (HOME/secret, or where HOLDFAST_SECRET_FILE points) to this machine, mode 0600."
                    ) from None
                _log.error("gateway %s refused %s: %s", self._gateways[0], path, error)
                if body is not self._message:
                    return
            await asyncio.sleep(wait_s)
            wait_s = min(_LONGEST_WAIT_S, wait_s * 2)

    async def _post(self, path: str, body: BaseModel) -> httpx.Response:
        try:
            if isinstance(body, Report):
                # The gateway computes the age of a report from this, also after a wait for the gateway.
                body = body.model_copy(update={"at": time.time()})
            self._tls.refresh()
            headers = {"Authorization": self._secret.header, "Content-Type": "application/json"}
            url = f"{self._gateways[0]}{path}"
            # What was late before is waited for.
            timeout_s = max(_TIMEOUT_S, silence.ANSWER_SHARE * self._standing.lease_s)
            response = await self._http.post(url, content=_written(body), headers=headers, timeout=timeout_s)
        except httpx.HTTPError as error:
            self._next_gateway()
            raise UnavailableError(f"gateway {self._gateways[0]}: {type(error).__name__} {error}") from None
        if response.status_code >= 500:
            self._next_gateway()
            raise UnavailableError(f"gateway {self._gateways[0]}: status {response.status_code}")
        raise_for(response)
        return response

    def _next_gateway(self) -> None:
        """Switch gateways: of several one leads; when this one is away or stands by, the next is asked."""
        self._gateways.rotate(-1)


def _written(body: BaseModel) -> bytes:
    """Return the message as JSON, whatever text was read on this machine: the agent must not end for it."""
    try:
        return body.model_dump_json().encode()
    except ValueError:
        return to_json(whole_characters(body.model_dump()), inf_nan_mode="null")


def _granted(answer: httpx.Response) -> Heard:
    """Return what the gateway granted; nothing, if it speaks an older protocol version."""
    try:
        return tolerant.read(Heard, answer.content)
    except ValidationError:
        return Heard()

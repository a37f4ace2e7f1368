"""Requests that SQLite refused at once are repeated by the embedded Prefect server itself."""

from __future__ import annotations

import asyncio

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.types import Message, Receive, Scope, Send

from holdfast.deployments.local.busy_database import REPEAT_FOR_S, repeat_while_busy


class Clock:
    """Time passes by pauses, and by what an attempt takes."""

    def __init__(self) -> None:
        self.at = 0.0
        self.pauses: list[float] = []

    def now(self) -> float:
        return self.at

    async def pause(self, seconds: float) -> None:
        self.at += seconds
        self.pauses.append(seconds)


class Server:
    """Prefect's shape: an API that is mounted, and turns an exception into 503 as FastAPI does, which raises it too."""

    def __init__(self, clock: Clock, busy: int, status: int = 503, took_s: float = 0.0) -> None:
        self.busy, self.status, self.took_s, self.clock = busy, status, took_s, clock
        self.bodies: list[bytes] = []
        api = Starlette(
            routes=[Route("/flow_runs/{name}", self.create, methods=["POST"])],
            exception_handlers={Exception: self.refused},
        )
        self.app = repeat_while_busy(Starlette(routes=[Mount("/api", api)]), clock.now, clock.pause)

    async def create(self, request: Request) -> Response:
        self.bodies.append(await request.body())
        self.clock.at += self.took_s
        if len(self.bodies) <= self.busy:
            raise ZeroDivisionError
        return JSONResponse({"name": request.path_params["name"]}, 201)

    async def refused(self, _: Request, __: Exception) -> Response:
        return JSONResponse({"exception_message": "Service Unavailable"}, self.status)

    async def post(self, content: bytes = b"body") -> httpx.Response:
        transport = httpx.ASGITransport(self.app, raise_app_exceptions=self.status == 503)
        async with httpx.AsyncClient(transport=transport, base_url="http://prefect") as client:
            return await client.post("/api/flow_runs/one", content=content)


@given(st.integers(0, 8), st.binary(max_size=99))
def test_a_moment_of_a_busy_database_is_not_seen_by_clients(busy: int, content: bytes) -> None:
    server = Server(Clock(), busy)
    answer = asyncio.run(server.post(content))
    assert (answer.status_code, answer.json()) == (201, {"name": "one"})
    assert server.bodies == [content] * (busy + 1)


async def test_a_database_that_stays_busy_is_answered_as_such() -> None:
    """Then clients' own growing pauses hold."""
    clock = Clock()
    answer = await Server(clock, 10**6).post()
    assert (answer.status_code, "retry-after" in answer.headers) == (503, False)
    assert REPEAT_FOR_S <= clock.at < REPEAT_FOR_S + 0.5
    assert max(clock.pauses) <= 0.2
    assert len(clock.pauses) < 60


@pytest.mark.parametrize(("status", "took_s"), [(500, 0.0), (409, 0.0), (503, 1.5)])
async def test_other_answers_and_late_ones_are_passed_on_at_once(status: int, took_s: float) -> None:
    clock = Clock()
    server = Server(clock, 1, status, took_s)
    assert (await server.post()).status_code == status
    assert (len(server.bodies), clock.pauses) == (1, [])


async def test_nothing_is_repeated_for_a_client_that_is_gone() -> None:
    """Nor is an answer withheld of which a part was sent."""
    sent, attempts = list[Message](), 0

    async def app(_: Scope, receive: Receive, send: Send) -> None:
        nonlocal attempts
        attempts += 1
        while (await receive())["type"] != "http.disconnect":
            pass
        await send({"type": "http.response.start", "status": 503, "headers": []})

    async def send(message: Message) -> None:
        sent.append(message)

    coming = iter([{"type": "http.request", "body": b"", "more_body": False}, {"type": "http.disconnect"}])

    async def receive() -> Message:
        return next(coming)

    await repeat_while_busy(app)({"type": "http"}, receive, send)
    assert (attempts, [m["status"] for m in sent]) == (1, [503])

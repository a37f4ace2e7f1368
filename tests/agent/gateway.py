"""A gateway that records the agents' messages, on a thread of its own."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from holdfast.models.agent import Heartbeat, Register, Report
from holdfast.models.alert import Alert, AlertKind
from holdfast.models.roles import RolePlan
from tests.e2e.waiting import wait_for

Found = TypeVar("Found")

GIVEN_UP_S = 2.5
"""An agent that has waited about so long (three seconds) for an answer sends the same again."""


class FakeGateway:
    """Listens on a free port of loopback."""

    def __init__(self) -> None:
        self.registered: dict[str, Register] = {}
        self.reports: list[Report] = []
        self.heartbeats: list[Heartbeat] = []
        self.stale: set[str] = set()
        """Machines whose heartbeats are answered 409."""
        self.plans: dict[str, RolePlan] = {}
        """Replicas that machines are to run."""
        app = Starlette(routes=[Route("/v1/agents/{what}", self._take, methods=["POST"])])
        config = uvicorn.Config(app, port=0, log_config=None, access_log=False, lifespan="off")
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, daemon=True)
        self._thread.start()
        until(lambda: self._server.started)
        self.port: int = self._server.servers[0].sockets[0].getsockname()[1]

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join(5)

    def alerts(self, kind: AlertKind, job: str) -> list[Alert]:
        return [a for report in list(self.reports) for a in report.alerts if (a.kind, a.job) == (kind, job)]

    def done(self, job: str) -> set[int]:
        return {rank for report in list(self.reports) if report.job == job for rank in report.done}

    async def _take(self, request: Request) -> JSONResponse:
        what, body = request.path_params["what"], await request.body()
        if not request.headers.get("authorization", "").startswith("Bearer "):
            return JSONResponse({"error": "UnauthorizedError", "message": "secret"}, 401)
        if what == "register":
            message = Register.model_validate_json(body)
            self.registered[message.machine] = message
        elif what == "heartbeat":
            beat = Heartbeat.model_validate_json(body)
            self.heartbeats.append(beat)
            if beat.machine in self.stale:
                return JSONResponse({"error": "StaleError", "message": "replaced"}, 409)
            plan = self.plans.get(beat.machine)
            if plan is not None and plan.version != beat.plan:
                return JSONResponse({"ok": True, "plan": plan.model_dump(mode="json")})
        elif not self._again(report := Report.model_validate_json(body)):
            self.reports.append(report)
        return JSONResponse({"ok": True})

    def _again(self, report: Report) -> bool:
        """Whether the answer to this report came so late, on a busy host, that the agent sends it a second time."""
        return any(
            report.at - each.at > GIVEN_UP_S and each.model_copy(update={"at": report.at}) == report
            for each in self.reports[-20:]
        )


def until(look: Callable[[], Found], timeout_s: float = 150.0, what: str = "") -> Found:
    """Wait until ``look`` returns something true; returns that."""
    return wait_for(what or str(look), look, timeout_s, every_s=0.01)


async def eventually(ask: Callable[[], Awaitable[Found]], timeout_s: float = 60.0) -> Found:
    """As :func:`until`, for a question that is awaited."""
    deadline = time.monotonic() + timeout_s
    while not (found := await ask()):
        assert time.monotonic() < deadline, f"waited {timeout_s} s for {ask}"
        await asyncio.sleep(0.005)
    return found


def events(gateway: FakeGateway, job: str) -> list[Any]:
    """Reports about a job, oldest first."""
    return [report for report in list(gateway.reports) if report.job == job]

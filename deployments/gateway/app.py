"""The gateway as an ASGI application."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request, Response
from fastapi.exception_handlers import http_exception_handler
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from holdfast import __version__
from holdfast.clock import Clock
from holdfast.deployments.gateway.api import agents, alerts, jobs, manual_actions, read
from holdfast.deployments.gateway.api.auth import AuthMiddleware, body_of
from holdfast.deployments.gateway.detectors.probe import HttpProber, Prober
from holdfast.deployments.gateway.detectors.stacks import StackReader
from holdfast.deployments.gateway.fleet.acts import JobActs
from holdfast.deployments.gateway.fleet.launch import start
from holdfast.deployments.gateway.gateway import Gateway
from holdfast.deployments.gateway.leadership import Leadership
from holdfast.deployments.gateway.metrics import Metrics
from holdfast.deployments.gateway.page import entrance, views
from holdfast.deployments.gateway.page.session import Sessions
from holdfast.deployments.gateway.runs.flow_runs import Runs
from holdfast.errors import HoldfastError, SettingsError
from holdfast.plugins.policy import site_policy
from holdfast.policies.config.policy import Policy
from holdfast.secret import Keys
from holdfast.settings import Settings
from holdfast.storage.ledger import Ledger

Hook = Callable[[], Awaitable[None]]


def create_app(
    settings: Settings,
    ledger: Ledger,
    clock: Clock,
    runs: Runs,
    *,
    prober: Prober,
    acts: JobActs,
    secret: str | Keys,
    policy: Policy | None = None,
    metrics: Metrics | None = None,
    stacks: StackReader | None = None,
    leader: str = "",
    opening: Hook | None = None,
    closing: Hook | None = None,
) -> FastAPI:
    """Return the application; its :class:`Gateway` is ``app.state.gateway``.

    The lifespan starts and stops the loops; without it (tests) nothing happens by itself. ``opening`` and
    ``closing`` run at its ends. With ``leader``, its name among the gateways of this ledger, the loops run and
    requests are served only while it leads.
    """
    gateway = Gateway(
        settings,
        ledger,
        clock,
        policy or site_policy(settings.policy_file, usable=True),
        runs=runs,
        prober=prober,
        acts=acts,
        metrics=metrics or Metrics(),
        stacks=stacks,
    )
    gateway.reconciler.giving_up.start = functools.partial(start, gateway)

    leadership = (
        Leadership(ledger, gateway, leader, settings.own_gateway, clock.monotonic) if leader else None
    )
    if leadership:
        gateway.may_act = leadership.require_sure
        gateway.term = leadership.term
        if isinstance(prober, HttpProber):
            prober.term = gateway.term

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        if opening:
            await opening()
        if leadership:
            await leadership.open()
        else:
            await gateway.resume()
            gateway.start()
        yield
        await (leadership.close() if leadership else gateway.stop())
        if closing:
            await closing()

    app = FastAPI(
        title="Holdfast gateway", version=__version__, lifespan=lifespan, docs_url=None, redoc_url=None
    )
    app.state.gateway = gateway
    for part in (agents, alerts, jobs, manual_actions, read):
        app.include_router(part.routes(gateway))
    sessions = Sessions(secret, settings.port, settings.login_h * 3600)
    app.include_router(views.routes(gateway))
    app.include_router(entrance.routes(gateway, sessions))

    @app.get("/healthz")
    async def healthz() -> dict[str, bool]:
        return {"ok": True}

    @app.get("/readyz")
    async def readyz() -> dict[str, bool]:
        """Answer a load balancer: only the gateway that leads is ready."""
        if leadership and not leadership.leads:
            raise leadership.refuse()
        return {"ok": True}

    @app.get("/metrics")
    async def exposition() -> Response:
        if leadership and not leadership.leads:
            gateway.site.metrics.stand_by()
        return Response(gateway.site.metrics.render(), media_type=CONTENT_TYPE_LATEST)

    @app.exception_handler(HoldfastError)
    async def refused(_: Request, error: HoldfastError) -> JSONResponse:
        return JSONResponse(body_of(error), status_code=error.status)

    @app.exception_handler(RequestValidationError)
    async def malformed(_: Request, error: RequestValidationError) -> JSONResponse:
        return JSONResponse(body_of(SettingsError(_first(error))), status_code=SettingsError.status)

    @app.exception_handler(HTTPException)
    async def unread(request: Request, error: HTTPException) -> Response:
        """Answer what the framework cannot read at all in the form of all other refusals."""
        if error.status_code != _UNREAD or isinstance(error.__cause__, ClientDisconnect):
            return await http_exception_handler(request, error)
        refusal = SettingsError(
            "the body is not JSON that can be read: it is nested too deep or not in UTF-8"
        )
        return JSONResponse(body_of(refusal), status_code=SettingsError.status)

    @app.exception_handler(ClientDisconnect)
    async def broken_off(_: Request, __: ClientDisconnect) -> Response:
        """End a request whose client went away before all of it came: no one reads the answer."""
        return Response(status_code=400)

    app.add_middleware(
        AuthMiddleware, secret=secret, metrics=gateway.site.metrics, sessions=sessions, leadership=leadership
    )
    return app


_UNREAD = 400
"""Of the framework, for any error while it reads a body."""


def _first(error: RequestValidationError) -> str:
    """Return the first thing that is wrong with a request: the field, the value (shortened), what was expected."""
    found = error.errors()[0]
    if found["type"] == "json_invalid":
        # An agent's message is read by another parser, whose message has the place itself.
        at = f" at character {found['loc'][-1]}" if found["loc"] else ""
        return f"the body is not JSON: {found['ctx']['error']}{at}"
    field, value = ".".join(str(part) for part in found["loc"])[:200], found.get("input")
    if found["type"] == "missing":
        return f"{field} is missing: give it"
    if isinstance(value, bytes):  # not read as JSON, as the request does not say that it is
        return "the body is not taken for JSON: send it with the header Content-Type: application/json"
    return f"{field} = {repr(value)[:200]}: {found['msg']}"

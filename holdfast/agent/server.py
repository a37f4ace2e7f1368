"""The agent's HTTP API: :mod:`holdfast.agent.client` is its other end."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel, TypeAdapter, ValidationError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from holdfast import names
from holdfast.agent.uplink.contact import is_gateway, term_of
from holdfast.errors import HoldfastError, SettingsError, StaleError, UnauthorizedError
from holdfast.guarded_http import is_known
from holdfast.models import agent as wire
from holdfast.models import tolerant

if TYPE_CHECKING:
    from holdfast.agent.daemon import Agent

_log = logging.getLogger(__name__)
_JSON = TypeAdapter(Any)
_SHOWN = 200
"""Characters of a wrong field or value: it may be the whole body."""

Command = TypeVar("Command", bound=BaseModel)
Handler = Callable[[Request], Awaitable[Response]]


def build(agent: Agent) -> Starlette:
    """Return the application that serves ``agent``."""
    api = _Api(agent)

    def command(path: str, model: type[Command], act: Callable[[Command], Awaitable[object]]) -> Route:
        async def handle(request: Request) -> Response:
            return _json(await act(_parse(model, await request.body())))

        return Route(path, api.guarded(handle), methods=["POST"])

    return Starlette(
        routes=[
            Route("/healthz", api.healthz),
            Route("/metrics", api.guarded(api.metrics)),
            Route("/v1/state", api.guarded(api.state)),
            Route("/v1/contact", api.guarded(api.contact)),
            Route("/v1/stacks", api.guarded(api.stacks)),
            Route("/v1/flight", api.guarded(api.flight)),
            Route("/v1/first-steps", api.guarded(api.first_steps)),
            Route("/v1/replay", api.guarded(api.replay)),
            Route("/v1/jobs/{job}", api.guarded(api.forget), methods=["DELETE"]),
            command("/v1/fence", wire.Fence, agent.fence),
            command("/v1/settle", wire.Fence, agent.settle),
            command("/v1/rendezvous", wire.OpenRendezvous, agent.open_rendezvous),
            Route("/v1/code/{job}/{version}", api.guarded(api.code)),
            command("/v1/start", wire.Start, agent.start),
            command("/v1/ahead", wire.Ahead, agent.start_ahead),
            command("/v1/mirror", wire.Mirror, agent.mirror),
            command("/v1/hold", wire.Hold, agent.hold),
            command("/v1/persist", wire.Persist, agent.persist),
            command("/v1/prove", wire.Prove, agent.prove),
            command("/v1/code", wire.PrepareCode, agent.prepare_code),
            command("/v1/diagnose", wire.Diagnose, agent.diagnose),
            command("/v1/command", wire.Command, agent.command),
        ]
    )


class _Api:
    """Handlers that take no command, and the guard of all handlers."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent

    def guarded(self, handle: Handler) -> Handler:
        """Put ``handle`` behind the shared secret, and convert its errors into answers."""

        async def guarded(request: Request) -> Response:
            metrics, path = self._agent.metrics, request.scope["route"].path
            try:
                if not self._agent.secret.match(request.headers.get("authorization")):
                    metrics.unauthorized.inc()
                    raise UnauthorizedError("missing or wrong secret: use the project's secret file")
                is_known(request.scope)
                response = await handle(request)
            except HoldfastError as error:
                metrics.commands.labels(path, type(error).__name__).inc()
                return _error(type(error).__name__, str(error), error.status)
            except Exception as error:
                _log.exception("%s failed", path)
                metrics.commands.labels(path, "failed").inc()
                return _error("HoldfastError", f"{type(error).__name__}: {error} (see agent.log)", 500)
            metrics.commands.labels(path, "ok").inc()
            return response

        return guarded

    async def healthz(self, request: Request) -> Response:
        """Answer that the agent is there; contains nothing secret."""
        agent = self._agent
        if is_gateway(request.headers, agent.secret):
            agent.standing.asked(term_of(request.headers))
        return _json({"machine": agent.machine, "incarnation": agent.incarnation, "warm": agent.forks.warm})

    async def metrics(self, _request: Request) -> Response:
        """Return Prometheus metrics."""
        return Response(self._agent.render_metrics(), media_type="text/plain; version=0.0.4")

    async def state(self, request: Request) -> Response:
        """Return everything the agent knows.

        With ``?shards=no`` all but the shards; with ``?job=NAME&step=NUMBER`` no shards but those of this step.
        """
        asked = request.query_params
        saved = _job_and(request, "step") if "step" in asked else None
        return _json(await self._agent.state(shards=asked.get("shards") != "no", saved=saved))

    async def contact(self, _request: Request) -> Response:
        """Return the contact with the gateway, for a machine that does not hear it."""
        return _json(self._agent.standing.contact())

    async def stacks(self, request: Request) -> Response:
        """Return stacks of a job's rank processes."""
        return _json(await self._agent.stacks(*_job_and_epoch(request)))

    async def flight(self, request: Request) -> Response:
        """Return flight records of a job's ranks."""
        return _json(await self._agent.flight_records(*_job_and_epoch(request)))

    async def first_steps(self, request: Request) -> Response:
        """Return a job's ranks, as soon as it is known how their start went."""
        try:
            patience_s = float(request.query_params.get("patience_s", "0"))
            if not patience_s >= 0:
                raise ValueError(patience_s)
        except ValueError:
            raise SettingsError(f"{request.url.path}: expected patience_s=SECONDS, 0 or more") from None
        return _json(await self._agent.first_steps(*_job_and_epoch(request), patience_s))

    async def replay(self, request: Request) -> Response:
        """Return results of a replay, or null."""
        return _json(self._agent.jobs.replay_results(*_job_and_epoch(request)))

    async def code(self, request: Request) -> Response:
        """Return the archive of a code version, for a machine that has none."""
        asked = request.path_params
        job, version = names.require(names.JOB, asked["job"]), names.require(names.VERSION, asked["version"])
        archive = await self._agent.code_archive(job, version)
        return Response(archive, media_type="application/gzip")

    async def forget(self, request: Request) -> Response:
        """Drop everything of a job that ended.

        Raises:
            StaleError: the request names no epoch: a job whose ranks are down may be about to go on from what is here.
        """
        job, asked = names.require(names.RUN, request.path_params["job"]), request.query_params
        if "epoch" not in asked:
            raise StaleError(
                f"job {job!r}: nothing is forgotten without the epoch that has ended: send ?epoch=N&incarnation=I"
            )
        await self._agent.forget(_parse(wire.Fence, _JSON.dump_json({**asked, "job": job})))
        return _json(None)


def _job_and_epoch(request: Request) -> tuple[str, int]:
    return _job_and(request, "epoch")


def _job_and(request: Request, what: str) -> tuple[str, int]:
    try:
        job, number = request.query_params["job"], int(request.query_params[what])
    except (KeyError, ValueError):
        raise SettingsError(f"{request.url.path}: expected ?job=NAME&{what}=NUMBER") from None
    return names.require(names.RUN, job), number


def _parse(model: type[Command], body: bytes) -> Command:
    try:
        return tolerant.read(model, body)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"]))[:_SHOWN] or "body"
        value = repr(first.get("input"))[:_SHOWN]
        raise SettingsError(f"{model.__name__}.{field} = {value}: {first['msg']}") from None


def _json(value: object) -> Response:
    return Response(_JSON.dump_json(value), media_type="application/json")


def _error(name: str, message: str, status: int) -> Response:
    return JSONResponse({"error": name, "message": message}, status_code=status)

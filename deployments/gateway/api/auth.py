"""Authentication by the shared secret, and limits on the size of requests. Plain ASGI, before any parsing."""

from __future__ import annotations

import contextlib
import json

from starlette.datastructures import Headers
from starlette.requests import cookie_parser
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from holdfast import secret as secrets
from holdfast.deployments.gateway.leadership import Leadership
from holdfast.deployments.gateway.metrics import Metrics
from holdfast.deployments.gateway.page.session import (
    SAFE_METHODS,
    Sessions,
    must_be_of_the_page,
    must_not_be_forged,
)
from holdfast.errors import HoldfastError, RefusedError, UnauthorizedError, UnavailableError
from holdfast.guarded_http import is_known

OPEN_PATHS = frozenset({"/healthz", "/readyz"})
PAGE = "/ui/"
"""The status page itself contains nothing secret: it requests the data that it shows with its login."""
NOT_BY_COOKIE = ("/v1/agents/", "/v1/alerts")
"""Paths for requests of machines, which never come from a browser."""
MAX_BODY_BYTES = 4 * 1024 * 1024
MAX_PAGE_BYTES = 16 * 1024
"""On the page's own paths, such as a login: it is read before the caller has shown the secret."""
ALERT_PATHS = ("/v1/alerts", "/v1/agents/events")
MAX_ALERTS_AT_ONCE = 1024
"""Requests that bring alerts, under way at once: what an alert storm may take of the memory."""


class TooLargeError(RefusedError):
    """The request's body is larger than any that a gateway accepts."""

    status = 413


class AuthMiddleware:
    """Lets a request in when it carries the secret and is not too large; answers 401 or 413 otherwise.

    A gateway that stands by answers 503 to all that it would let in.
    """

    def __init__(
        self,
        app: ASGIApp,
        secret: str | secrets.Keys,
        metrics: Metrics,
        sessions: Sessions,
        leadership: Leadership | None = None,
    ) -> None:
        self._app = app
        self._secret = secrets.keys(secret)
        self._metrics = metrics
        self._sessions = sessions
        self._leadership = leadership
        self._alerts = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        if scope["type"] != "http" or scope["path"] in OPEN_PATHS:
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        try:
            self._admit(scope, headers)
        except UnauthorizedError as error:
            self._metrics.unauthorized.labels(_kind_of(scope["path"])).inc()
            await _answer(send, error)
            return
        if self._leadership and not self._leadership.leads and scope["path"] != "/metrics":
            await _answer(send, self._leadership.refuse())
            return
        most = MAX_PAGE_BYTES if scope["path"].startswith(PAGE) else MAX_BODY_BYTES
        length = headers.get("content-length", "0")
        if not length.isdigit() or int(length) > most:
            await _answer(send, _too_large(most))
            return
        if not scope["path"].startswith(ALERT_PATHS):
            await self._limited(scope, receive, send, most)
            return
        if self._alerts >= MAX_ALERTS_AT_ONCE:
            await _answer(send, UnavailableError(f"{self._alerts} reports are under way: send it again"))
            return
        self._alerts += 1
        try:
            await self._limited(scope, receive, send, most)
        finally:
            self._alerts -= 1

    def _admit(self, scope: Scope, headers: Headers) -> None:
        """Admit a request by the secret; on the status page's paths also by its login.

        Raises:
            UnauthorizedError: it has neither.
        """
        path, method = scope["path"], scope["method"]
        if (path == "/" or path.startswith(PAGE)) and (method in SAFE_METHODS or path == f"{PAGE}login"):
            return
        if self._secret.match(headers.get("authorization")):
            is_known(scope)
            return
        session = None
        if not path.startswith(NOT_BY_COOKIE):
            session = self._sessions.read(cookie_parser(headers.get("cookie", "")).get(self._sessions.cookie))
        if session is None:
            raise UnauthorizedError(
                "missing or wrong secret: send `Authorization: Bearer SECRET` with the content of the secret file"
            )
        is_known(scope)
        must_not_be_forged(session, method, headers)
        must_be_of_the_page(method, path)
        scope.setdefault("state", {})["session"] = session

    async def _limited(self, scope: Scope, receive: Receive, send: Send, most: int) -> None:
        """Count what a body without a declared length brings; more than allowed ends the request."""
        taken = 0

        async def counted() -> Message:
            nonlocal taken
            message = await receive()
            taken += len(message.get("body", b""))
            if taken > most:
                raise _too_large(most)
            return message

        async def guarded(message: Message) -> None:
            # The framework makes its own answer (400) of an error while it reads.
            if taken <= most:
                await send(message)

        with contextlib.suppress(TooLargeError):
            await self._app(scope, counted, guarded)
        if taken > most:
            await _answer(send, _too_large(most))


def _kind_of(path: str) -> str:
    """Return the route's kind, from a closed set: a path that a stranger made up must not become a label."""
    for kind in (
        "agents",
        "alerts",
        "jobs",
        "machines",
        "incidents",
        "status",
        "pool",
        "checkpoints",
        "page",
        "by-hand",
    ):
        if path == f"/v1/{kind}" or path.startswith(f"/v1/{kind}/"):
            return kind
    if path.startswith(PAGE):
        return "ui"
    return "metrics" if path == "/metrics" else "other"


def _too_large(most: int) -> TooLargeError:
    return TooLargeError(f"the request's body is larger than {most} bytes: send less at once")


def body_of(error: HoldfastError) -> dict[str, str]:
    """Return the JSON answer that stands for ``error``."""
    return {"error": type(error).__name__, "message": str(error)}


async def _answer(send: Send, error: HoldfastError) -> None:
    body = json.dumps(body_of(error)).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        # What is left of an unread body would be taken for the next request.
        (b"connection", b"close"),
    ]
    if isinstance(error, UnauthorizedError):
        headers.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})

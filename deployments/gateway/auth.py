"""At the door: the shared secret, and a limit on how much a request may carry. Plain ASGI, before any parsing."""

from __future__ import annotations

import contextlib
import json

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from holdfast import secret as secrets
from holdfast.deployments.gateway.metrics import Metrics
from holdfast.errors import HoldfastError, RefusedError, UnauthorizedError

OPEN_PATHS = frozenset({"/healthz"})
MAX_BODY_BYTES = 4 * 1024 * 1024


class TooLargeError(RefusedError):
    """The request's body is larger than anything that a gateway is sent."""

    status = 413


class Door:
    """Lets a request in when it carries the secret and is not too large; answers 401 or 413 otherwise."""

    def __init__(self, app: ASGIApp, secret: str, metrics: Metrics) -> None:
        self._app = app
        self._secret = secret
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        if scope["type"] != "http" or scope["path"] in OPEN_PATHS:
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        if not secrets.matches(headers.get("authorization"), self._secret):
            self._metrics.unauthorized.labels(_kind_of(scope["path"])).inc()
            error = UnauthorizedError(
                "missing or wrong secret: send `Authorization: Bearer SECRET` with the content of the secret file"
            )
            await _answer(send, error)
            return
        length = headers.get("content-length", "0")
        if not length.isdigit() or int(length) > MAX_BODY_BYTES:
            await _answer(send, _too_large())
            return
        await self._limited(scope, receive, send)

    async def _limited(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Count what a body without a declared length brings; more than allowed ends the request."""
        taken = 0

        async def counted() -> Message:
            nonlocal taken
            message = await receive()
            taken += len(message.get("body", b""))
            if taken > MAX_BODY_BYTES:
                raise _too_large()
            return message

        async def guarded(message: Message) -> None:
            # The framework makes its own answer (400) of an error while it reads.
            if taken <= MAX_BODY_BYTES:
                await send(message)

        with contextlib.suppress(TooLargeError):
            await self._app(scope, counted, guarded)
        if taken > MAX_BODY_BYTES:
            await _answer(send, _too_large())


def _kind_of(path: str) -> str:
    """The route's kind, from a closed set: a path that a stranger made up must not become a label."""
    for kind in ("agents", "alerts", "jobs", "machines", "incidents", "status", "pool", "checkpoints"):
        if path == f"/v1/{kind}" or path.startswith(f"/v1/{kind}/"):
            return kind
    return "metrics" if path == "/metrics" else "other"


def _too_large() -> TooLargeError:
    return TooLargeError(f"the request's body is larger than {MAX_BODY_BYTES} bytes: send less at once")


def body_of(error: HoldfastError) -> dict[str, str]:
    """The JSON answer that stands for ``error``."""
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

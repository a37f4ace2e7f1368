"""Prefect's server by TLS, with its garbage collected in a thread of its own: ``python -m ... server start``.

Prefect has no setting for TLS, but leaves the serving to uvicorn, which has: with a certificate in the settings the
server is started by TLS, and takes a renewed one as gateway and agents do. Requests have the deadlines of ours, too.

On SQLite, cursors that became garbage are finalised wherever the collector happens to run. Finalising takes the lock of
the cursor's connection, which that connection's thread holds while it waits for another transaction to end, for up to
a minute. When the collector ran in the event loop's thread, that other transaction could not end: Prefect answered
no request for that minute. In a thread of its own only the collector waits.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import runpy
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import uvicorn
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from holdfast import tls
from holdfast.deployments.local import prefect_database
from holdfast.guarded_http import HEAD_S, guarded
from holdfast.listen import KEEP_ALIVE_S, handed_over
from holdfast.settings import Settings

YOUNG_EVERY_S = 1.0
_BACKLOG = 2048
_FIRST_WORD = 2
"""Number of a stream's first message after the one that opened it."""
_BUSY, _SOON = 503, b"0.2"
_AT_ONCE_S = 1.0
"""An answer that took longer comes after a wait in the database."""
_CALM_S = 1.0
"""Longest time between two answers of a busy database that have to do with each other."""
_SOON_FOR_S = 0.35
"""So long after the first of them clients ask again soon: twice. They ask six times in all."""
ALL_EVERY = 60
"""Number of rounds after which old objects are collected too."""


def collect_aside() -> threading.Thread:
    """Turn automatic collection off in this process; a daemon thread does it from now on."""
    gc.disable()
    thread = threading.Thread(target=_collect, name="garbage", daemon=True)
    thread.start()
    return thread


def _collect() -> None:
    rounds = 0
    while True:
        time.sleep(YOUNG_EVERY_S)
        rounds += 1
        if rounds % ALL_EVERY:
            gc.collect(1)
            continue
        gc.collect()
        if rounds == ALL_EVERY:
            gc.freeze()  # modules and settings: they stay for the server's life


def serve_guarded(settings: Settings) -> None:
    """Have uvicorn keep our deadlines, and serve by TLS if there is a certificate, however this process starts it."""
    context, listening = tls.of(settings).server(), handed_over(_BACKLOG)
    if listening is not None:
        _bind_nothing(sys.argv)

    def run_guarded(app: ASGIApp, **options: Any) -> None:
        config = uvicorn.Config(
            again_soon(first_word_soon(app)),
            http=guarded(),
            ssl_context_factory=None if context is None else lambda _config, _default: context,
            **patient({name: value for name, value in options.items() if name != "app_dir"}),
        )
        server = uvicorn.Server(config)
        with contextlib.suppress(KeyboardInterrupt):
            server.run(sockets=None if listening is None else [listening])
        if not server.started:
            sys.exit("the server did not start")

    uvicorn.run = run_guarded  # type: ignore[assignment]


def patient(options: dict[str, Any]) -> dict[str, Any]:
    """Return uvicorn's ``options`` with idle connections kept for longer than Prefect's clients keep them.

    Prefect closes them after 5 s, and its clients keep them for 25: a request that was on its way at that time failed,
    and was sent again 2 s later.
    """
    kept_s = max(KEEP_ALIVE_S, options.get("timeout_keep_alive", 0))
    return options | {"timeout_keep_alive": kept_s}


def _bind_nothing(argv: list[str]) -> None:
    """Name any port on the command line: Prefect's command sees whether it can bind that one before it serves."""
    from prefect.cli import _server_utils  # noqa: PLC0415  (after the environment is complete)

    at, welcome = argv.index("--port") + 1, _server_utils.generate_welcome_blurb
    port, argv[at] = argv[at], "0"

    def with_port(base_url: str, ui_enabled: bool) -> str:
        return welcome(base_url.removesuffix(":0") + f":{port}", ui_enabled)

    _server_utils.generate_welcome_blurb = with_port


def first_word_soon(app: ASGIApp, within_s: float = HEAD_S) -> ASGIApp:
    """Wrap ``app`` to end streams whose client does not send something soon: Prefect's credentials come first."""

    async def served(scope: Scope, receive: Receive, send: Send) -> None:
        heard = 0 if scope["type"] == "websocket" else _FIRST_WORD

        async def bounded() -> Message:
            nonlocal heard
            if heard == _FIRST_WORD:
                return await receive()
            heard += 1
            try:
                return await asyncio.wait_for(receive(), within_s)
            except TimeoutError:
                return {"type": "websocket.disconnect", "code": 1008}

        await app(scope, bounded, send)

    return served


def again_soon(app: ASGIApp, now: Callable[[], float] = time.monotonic) -> ASGIApp:
    """Wrap ``app`` to have clients ask again soon where the database was busy for a moment; else they wait for 2 s.

    A transaction on SQLite that reads first cannot write once another one has written: Prefect answers 503 at once. One
    who asks again is answered. Where such answers go on, or came after a wait, clients' own growing pauses hold.
    """
    busy: dict[str, tuple[float, float]] = {}
    """Path -> when such answers began, and when the last one was given."""

    async def served(scope: Scope, receive: Receive, send: Send) -> None:
        asked_at = now()

        async def hinted(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] == _BUSY:
                at = now()
                for path, (_, last_at) in list(busy.items()):
                    if at - last_at >= _CALM_S:
                        del busy[path]
                began_at, _ = busy.get(scope["path"], (at, at))
                busy[scope["path"]] = began_at, at
                if at - asked_at < _AT_ONCE_S and at - began_at < _SOON_FOR_S:
                    message["headers"] = [*message["headers"], (b"retry-after", _SOON)]
            await send(message)

        await app(scope, receive, hinted)

    return served


if __name__ == "__main__":
    prefect_database.prepare(os.environ)
    serve_guarded(Settings())
    collect_aside()
    runpy.run_module("prefect", run_name="__main__", alter_sys=True)

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
from typing import Any

import uvicorn
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from holdfast import tls
from holdfast.deployments.local import busy_database, prefect_database
from holdfast.guarded_http import HEAD_S, guarded
from holdfast.listen import KEEP_ALIVE_S, handed_over
from holdfast.settings import Settings

YOUNG_EVERY_S = 1.0
_BACKLOG = 2048
_FIRST_WORD = 2
"""Number of a stream's first message after the one that opened it."""
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
            busy_database.repeat_while_busy(first_word_soon(app)),
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
        received = 0 if scope["type"] == "websocket" else _FIRST_WORD

        async def bounded() -> Message:
            nonlocal received
            if received == _FIRST_WORD:
                return await receive()
            received += 1
            try:
                return await asyncio.wait_for(receive(), within_s)
            except TimeoutError:
                return {"type": "websocket.disconnect", "code": 1008}

        await app(scope, bounded, send)

    return served


if __name__ == "__main__":
    prefect_database.prepare(os.environ)
    serve_guarded(Settings())
    collect_aside()
    runpy.run_module("prefect", run_name="__main__", alter_sys=True)

"""Repeat a request to the embedded Prefect server that SQLite refused at once, for those who sent it.

A transaction on SQLite that read first cannot write once another one has written: Prefect rolls it back and answers 503
without a wait. Its clients wait for 2, 4, then 8 s before they ask again. Repeated here, it is answered in
milliseconds. Clients repeat the same answers to the same requests, so nothing is done here that they would not do.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from functools import partial

from starlette.types import ASGIApp, Message, Receive, Scope, Send

_BUSY = 503
_AT_ONCE_S = 1.0
"""An answer that took longer came after a wait in the database, which the next attempt would have again."""
REPEAT_FOR_S = 5.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.02, 0.2


def repeat_while_busy(
    app: ASGIApp,
    now: Callable[[], float] = time.monotonic,
    pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> ASGIApp:
    """Wrap ``app`` to answer 503 only after it did so for ``REPEAT_FOR_S``, or after a wait, or without a client."""

    async def served(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await app(scope, receive, send)
            return
        request, until, pause_s = _Request(receive), now() + REPEAT_FOR_S, _FIRST_PAUSE_S

        def may_repeat(latest: float) -> bool:
            return now() < latest and not request.gone

        while True:
            answer = _Answer(send, partial(may_repeat, min(until, now() + _AT_ONCE_S)))
            try:
                await app(dict(scope), request.from_its_start(), answer.send)
            except Exception:
                # Starlette raises what it answered 503 to. uvicorn would close the connection, which clients keep: the
                # next request on it would get no answer.
                if not answer.busy:
                    raise
            if not answer.withheld:
                return
            await pause(random.uniform(pause_s / 2, pause_s))  # two that collided shall not meet again
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    return served


class _Request:
    """A request whose messages each attempt hears from the first one on."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._received: list[Message] = []
        self.gone = False

    def from_its_start(self) -> Receive:
        received = iter(self._received.copy())

        async def receive() -> Message:
            if (message := next(received, None)) is None:
                message = await self._receive()
                self._received.append(message)
                self.gone = self.gone or message["type"] == "http.disconnect"
            return message

        return receive


class _Answer:
    """The answer of one attempt: withheld if it is a 503 that may be repeated."""

    def __init__(self, send: Send, may_repeat: Callable[[], bool]) -> None:
        self._send, self._may_repeat = send, may_repeat
        self.busy = self.withheld = False

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start" and message["status"] == _BUSY:
            self.busy, self.withheld = True, self._may_repeat()
        if not self.withheld:
            await self._send(message)

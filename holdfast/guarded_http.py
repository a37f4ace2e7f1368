"""uvicorn's HTTP protocol with deadlines and caps, which it has not: half a request is never waited for without end.

A connection must bring its first head within :data:`HEAD_S`, every later one within as long from its first byte, the
rest of a request within :data:`BODY_S` more, and take what it is answered. Of too many connections that have not shown
the secret the oldest gives way (:mod:`holdfast.strangers`). Nothing that comes without being part of a body (heads,
trailers, requests ahead of their turn) takes memory without end.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import MutableMapping
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from holdfast.strangers import Strangers

HEAD_S = 10.0
"""Seconds for the line and headers of a request."""
BODY_S = 30.0
"""Seconds for its body: 4 MiB at most, except from agents and playbooks to Prefect."""
STALL_S = 30.0
"""Seconds for which the other side may read nothing of an answer that waits for it."""
MAX_HEAD_BYTES = 64 << 10
"""For a head; also for trailers, which llhttp keeps like headers, and whatever else stands between pieces of a body."""
MOST_AHEAD = 16
"""Requests of one connection that wait for the answer to an earlier one: no client of ours sends any."""
_KNOWN = "holdfast.known"

Scope = MutableMapping[str, Any]


def guarded(strangers: Strangers | None = None) -> type[asyncio.Protocol]:
    """Return the protocol of one server: pass it to uvicorn as ``http``."""
    return type(
        "Guarded", (GuardedHttp,), {"strangers": Strangers(HEAD_S) if strangers is None else strangers}
    )


def is_known(scope: Scope) -> None:
    """Note that the request of ``scope`` carried the secret: its connection is no stranger's."""
    scope.get("extensions", {}).get(_KNOWN, _ignored)()


class GuardedHttp(HttpToolsProtocol):
    """One connection."""

    strangers: Strangers

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Count it, and wait for its first request."""
        self._timer: asyncio.TimerHandle | None = None
        self._stalled: asyncio.TimerHandle | None = None
        self._fields_nbytes = 0
        self._stranger = True
        self._extensions = {_KNOWN: self._known}
        super().connection_made(transport)
        peer = self.client[0] if self.client else ""
        self.strangers.came(self, peer, time.monotonic(), transport.abort)
        self._wait(HEAD_S)
        self._arm()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget it."""
        self.strangers.left(self)
        self._within(None)
        self._read_again()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take it, if it is no endless head or trailer. Most requests come whole: no timer is started for them."""
        self._fields_nbytes += len(data)
        super().data_received(data)
        if self._fields_nbytes > MAX_HEAD_BYTES:
            self.transport.abort()
        elif self._changed:
            self._arm()

    def on_message_begin(self) -> None:
        """Start the deadline of a request at its first byte."""
        super().on_message_begin()
        self.scope["extensions"] = self._extensions  # type: ignore[typeddict-item]
        # The first one's time runs since the connection; another's begins now.
        if self._waits is None:
            self._wait(HEAD_S)

    def on_headers_complete(self) -> None:
        """Start the deadline of the body once the head is complete.

        Raises:
            _TooMuchError: the head is too large, or too many requests wait; uvicorn answers 400 and closes.
        """
        # Whatever came with the head is counted, too: look closely where that alone is much.
        if self._fields_nbytes > MAX_HEAD_BYTES and self._head_nbytes() > MAX_HEAD_BYTES:
            raise _TooMuchError
        if len(self.pipeline) >= MOST_AHEAD:
            raise _TooMuchError
        self._wait(BODY_S)
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Reset the count: limits of bodies are those of the application."""
        self._fields_nbytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Lift the deadline of a complete request; idle connections are left to uvicorn's ``timeout_keep_alive``."""
        self._fields_nbytes = 0
        self._wait(None)
        super().on_message_complete()

    def handle_websocket_upgrade(self) -> None:
        """Lift the deadline: from here on the connection is a stream of another protocol."""
        self._known()
        self._wait(None)
        self._arm()
        super().handle_websocket_upgrade()

    def pause_writing(self) -> None:
        """Watch a client that does not read fast enough."""
        super().pause_writing()
        if self._stalled is None:
            self._look_again()

    def resume_writing(self) -> None:
        """Stop watching: the client reads again."""
        self._read_again()
        super().resume_writing()

    def timeout_keep_alive_handler(self) -> None:
        """Close a connection that was idle for too long; data that it did not read by now is dropped."""
        self.transport.abort()

    def _head_nbytes(self) -> int:
        return len(self.url) + sum(len(name) + len(value) for name, value in self.headers)

    def _known(self) -> None:
        if self._stranger:
            self._stranger = False
            self.strangers.left(self)

    def _wait(self, seconds: float | None) -> None:
        """Set the deadline of the next part; it starts once that part has not come with the data received before."""
        self._waits, self._changed = seconds, True

    def _arm(self) -> None:
        self._changed = False
        if self._timer is not None or self._waits is not None:
            self._within(self._waits)

    def _within(self, seconds: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if seconds is None else self.loop.call_later(seconds, self._late)

    def _late(self) -> None:
        self._timer = None
        if self.flow.read_paused:  # it is we who do not read
            self._within(BODY_S)
        else:
            self.transport.abort()

    def _look_again(self) -> None:
        """Check for progress of a large answer, which is buffered whole: slow is fine as long as some of it goes."""
        waits = self.transport.get_write_buffer_size()
        self._stalled = self.loop.call_later(STALL_S, self._went_on, waits)

    def _went_on(self, waited: int) -> None:
        if self.transport.get_write_buffer_size() < waited:
            self._look_again()
        else:
            self.transport.abort()

    def _read_again(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None


class _TooMuchError(Exception):
    """The request is larger than any of ours; raised in a callback of llhttp's, which ends the parsing."""


def _ignored() -> None:
    """Do nothing, for requests that came another way, as in tests."""

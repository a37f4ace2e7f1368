"""A connection to another process, read and written by threads: no full pipe and no half message stops the loop."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import socket
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from typing import Any


class TransferLine:
    """Sends messages in the order of the calls; made and used on the event loop.

    Args:
        connection: this side's end of a duplex pipe, which is this object's from now on.
        received: called on the loop with each message that arrived.
        ended: called on the loop once nothing more arrives: the other side is gone, or :meth:`close` was called.
    """

    def __init__(
        self,
        connection: Connection[Any, Any],
        received: Callable[[Any], None],
        ended: Callable[[], None],
    ) -> None:
        self._connection = connection
        self._received, self._ended = received, ended
        self._loop = asyncio.get_running_loop()
        self._waiting: queue.SimpleQueue[tuple[Callable[[], bool], bytes] | None] = queue.SimpleQueue()
        self._closing = threading.Lock()
        """A descriptor that was closed may be another file's by the time that it is shut down."""
        self._sender = threading.Thread(target=self._send, name="line out", daemon=True)
        self._receiver = threading.Thread(target=self._receive, name="line in", daemon=True)
        self._sender.start()
        self._receiver.start()

    def send(self, message: Any, wanted: Callable[[], bool]) -> None:
        """Have a message sent; one that ``wanted`` does not want any more when its turn comes is left out.

        Raises:
            PicklingError: it cannot be sent.
        """
        self._waiting.put((wanted, bytes(ForkingPickler.dumps(message))))

    def close(self) -> None:
        """End both directions, also where a thread waits in one."""
        with self._closing, contextlib.suppress(OSError):
            end = socket.socket(fileno=self._connection.fileno())
            try:
                end.shutdown(socket.SHUT_RDWR)
            finally:
                end.detach()

    def _send(self) -> None:
        while (each := self._waiting.get()) is not None:
            wanted, message = each
            try:
                if wanted():
                    self._connection.send_bytes(message)
            except OSError:
                self.close()  # the receiver hears of it
                return

    def _receive(self) -> None:
        try:
            while True:
                self._say(self._received, self._connection.recv())
        except Exception:  # its end, or half a message of a process that was killed
            self.close()
        self._waiting.put(None)
        self._sender.join()
        with self._closing:
            self._connection.close()
        self._say(self._ended)

    def _say(self, callback: Callable[..., None], *arguments: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the loop was closed
            self._loop.call_soon_threadsafe(callback, *arguments)

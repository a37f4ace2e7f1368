"""Orders of the agent to a rank whose process may be kept, and the thread that waits for them.

The agent sends a datagram when the epoch is over, and writes a file when the next one begins; both lie beside the
rank's control page.
"""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from holdfast.agent import wire


class EpochOrders:
    """The orders for one epoch of this process."""

    def __init__(self, control: Path, on_end: Callable[[], None]) -> None:
        """Listen from now on; ``on_end`` is called in a thread when the epoch is over.

        Raises:
            OSError: the socket cannot be made (a path that is too long).
        """
        self.over = threading.Event()
        """The agent's order that the epoch is over."""
        self._next = wire.next_order(control)
        self._path = wire.end_socket(control)
        self._on_end = on_end
        self._next.unlink(missing_ok=True)
        self._path.unlink(missing_ok=True)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            self._socket.bind(os.fspath(self._path))
        except OSError:
            self._socket.close()
            raise
        threading.Thread(target=self._listen, name="holdfast-keep", daemon=True).start()

    def close(self) -> None:
        """Stop listening: from now on the agent cannot reach this process."""
        self._path.unlink(missing_ok=True)
        self._next.unlink(missing_ok=True)
        self._socket.shutdown(socket.SHUT_RDWR)

    def next(self) -> dict[str, Any] | None:
        """Return the order to begin another epoch, if it is there."""
        try:
            order: dict[str, Any] = json.loads(self._next.read_text())
        except FileNotFoundError:
            return None
        return order

    def _listen(self) -> None:
        with self._socket:
            while data := self._socket.recv(64):
                if data == wire.END:
                    self.over.set()
                    self._on_end()

"""A TCP port that stays the site's own between two lives of its service.

Clients send the shared secret to whatever listens there. Were the port free while a service is started again, any user
of this host could listen on it, and be sent the secret.
"""

from __future__ import annotations

import contextlib
import socket

from holdfast.listen import family_of


class HeldPort:
    """A bound socket, on which the service listens while it lives."""

    def __init__(self, host: str, port: int) -> None:
        """Bind it.

        Raises:
            OSError: the port is in use, or not ours to use.
        """
        self._socket = socket.socket(family_of(host), socket.SOCK_STREAM)
        try:
            # Connections of a former run, or of a former life of the service, may linger.
            self._reuse(by_all=True)
            self._socket.bind((host, port))
            self._reuse(by_all=False)
        except OSError:
            self._socket.close()
            raise

    def fileno(self) -> int:
        """Return the descriptor to hand over."""
        return self._socket.fileno()

    def _reuse(self, *, by_all: bool) -> None:
        """Share the port with sockets of this user (``SO_REUSEPORT``), or with those of all as long as none listens."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, int(by_all))

    def rest(self) -> None:
        """Have nothing listen, so that connections are refused; the port stays bound."""
        self._reuse(by_all=False)
        with contextlib.suppress(OSError):  # nothing did
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Give the port up."""
        self._socket.close()

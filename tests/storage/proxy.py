"""A TCP proxy in front of a real S3 server that misbehaves on command, and counts what it did."""

from __future__ import annotations

import contextlib
import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

_REQUEST = re.compile(rb"(GET|PUT|POST|HEAD|DELETE) (\S+) HTTP/1\.1\r\n")
_SLOW_DOWN = b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate</Message></Error>"
_BUSY = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/xml\r\nConnection: close\r\n"
    b"Content-Length: %d\r\n\r\n%b" % (len(_SLOW_DOWN), _SLOW_DOWN)
)


@dataclass
class Faults:
    """Faults from now on."""

    refuse: bool = False
    """Connections are closed at once."""
    busy: bool = False
    """Every request is answered with 503."""
    stall: bool = False
    """Requests are taken and never answered."""
    cut: re.Pattern[bytes] | None = None
    """Requests that match (method and path) lose their connection after some of the body; counted."""
    cut_at: int = 1
    """The how manieth of those; 0: every one."""
    on_cut: Callable[[], None] | None = None
    """Called at the cut, before the connection is lost."""


@dataclass
class Proxy:
    """One listener in front of ``target``."""

    target: tuple[str, int]
    faults: Faults = field(default_factory=Faults)
    hits: int = 0
    """Times that a fault was applied."""
    matched: int = 0
    requests: list[bytes] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.endpoint = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._open: set[socket.socket] = set()
        threading.Thread(target=self._accept, daemon=True).start()

    def set(self, **faults: object) -> None:
        """Misbehave like this from now on, on open connections as well; nothing: behave."""
        self.faults, self.matched = Faults(**faults), 0  # type: ignore[arg-type]

    def close(self) -> None:
        self._listener.close()
        for each in list(self._open):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError), client, socket.create_connection(self.target) as server:
            self._open |= {client, server}
            try:
                if self.faults.refuse:
                    self._hit()
                    return
                threading.Thread(target=self._back, args=(server, client), daemon=True).start()
                self._forth(client, server)
            finally:
                for each in (client, server):
                    self._open.discard(each)
                    with contextlib.suppress(OSError):
                        each.shutdown(socket.SHUT_RDWR)

    def _back(self, server: socket.socket, client: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := server.recv(1 << 18):
                client.sendall(data)
            client.shutdown(socket.SHUT_WR)

    def _forth(self, client: socket.socket, server: socket.socket) -> None:
        cutting, passed = False, 0
        while data := client.recv(1 << 18):
            faults = self.faults
            if match := _REQUEST.match(data):
                self.requests.append(match[1] + b" " + match[2])
                cutting, passed = self._cuts(faults, self.requests[-1]), 0
            if faults.refuse:
                return self._hit()
            if faults.stall:
                self._hit()
                while client.recv(1 << 18):
                    pass
                return None
            if faults.busy:
                self._hit()
                client.sendall(_BUSY)
                return None
            passed += len(data)
            if cutting:
                server.sendall(data[: len(data) // 2])
                self._hit()
                if faults.on_cut:
                    faults.on_cut()
                return None
            server.sendall(data)
        return None

    def _cuts(self, faults: Faults, request: bytes) -> bool:
        if faults.cut is None or not faults.cut.search(request):
            return False
        with self._lock:
            self.matched += 1
            return faults.cut_at in (0, self.matched)

    def _hit(self) -> None:
        with self._lock:
            self.hits += 1


@contextmanager
def proxy(endpoint: str) -> Iterator[Proxy]:
    """A proxy in front of the server at ``endpoint``."""
    host, _, port = endpoint.removeprefix("http://").partition(":")
    made = Proxy((host, int(port)))
    try:
        yield made
    finally:
        made.close()

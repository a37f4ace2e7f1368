"""Servers that misbehave on purpose and count."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TypeVar

Server = TypeVar("Server", bound=ThreadingHTTPServer)


class _Server(ThreadingHTTPServer):
    @property
    def endpoint(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.server_port}"


class _Quiet(BaseHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Keep quiet."""


class Scripted(_Server):
    """Answers with the scripted statuses in turn (the last one for ever), and counts requests."""

    def __init__(self, statuses: list[int]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.statuses = statuses
        self.requests = 0
        self.in_errors: dict[str, str] = {}
        """Headers of answers that are none."""


class _Handler(_Quiet):
    server: Scripted

    def do_GET(self) -> None:
        statuses = self.server.statuses
        status = statuses[min(self.server.requests, len(statuses) - 1)]
        self.server.requests += 1
        self.send_response(status)
        for key, value in self.server.in_errors.items() if status >= 400 else ():
            self.send_header(key, value)
        self.send_header("Content-Length", "5")
        self.end_headers()
        self.wfile.write(b"bytes")


class Page(_Server):
    """Answers every request with a page for people."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _PageHandler)


class _PageHandler(_Quiet):
    def do_GET(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        page = b"<html><body>Log in</body></html>"
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(page)))
        self.end_headers()
        self.wfile.write(b"" if self.command == "HEAD" else page)

    do_PUT = do_HEAD = do_POST = do_DELETE = do_GET  # noqa: N815  (names of the base class)


class Elsewhere(_Server):
    """Sends every request elsewhere, with ``status``, ``headers`` and an error that names ``endpoint_there``."""

    def __init__(self, status: int, headers: dict[str, str], endpoint_there: str = "") -> None:
        super().__init__(("127.0.0.1", 0), _ElsewhereHandler)
        self.status, self.headers, self.requests = status, headers, 0
        self.error = f"<Error><Code>Redirect</Code><Endpoint>{endpoint_there}</Endpoint></Error>".encode()


class _ElsewhereHandler(_Quiet):
    server: Elsewhere

    def do_GET(self) -> None:
        self.server.requests += 1
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.send_response(self.server.status)
        for key, value in self.server.headers.items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(self.server.error)))
        self.end_headers()
        self.wfile.write(b"" if self.command == "HEAD" else self.server.error)

    do_PUT = do_HEAD = do_POST = do_DELETE = do_GET  # noqa: N815  (names of the base class)


class Cached(_Server):
    """Has the object ``b/k``, lists it if ``lists``, and answers the first ``misses`` requests for it with 404."""

    def __init__(self, misses: int, *, lists: bool = True) -> None:
        super().__init__(("127.0.0.1", 0), _CachedHandler)
        self.misses, self.lists = misses, lists


class _CachedHandler(_Quiet):
    server: Cached

    def do_GET(self) -> None:
        found = (
            "<Contents><Key>k</Key><Size>5</Size><LastModified>2026-11-28T00:00:00Z</LastModified></Contents>"
        )
        if "list-type" in self.path:
            self._answer(
                200, f"<ListBucketResult><Name>b</Name>{found * self.server.lists}</ListBucketResult>"
            )
        elif self.path.startswith("/b/k") and self.server.misses <= 0:
            self._answer(206 if "Range" in self.headers else 200, "bytes")
        else:
            self.server.misses -= 1
            self._answer(404, "<Error><Code>NoSuchKey</Code></Error>")

    def _answer(self, status: int, body: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", '"e"')
        self.send_header("Last-Modified", "Sat, 28 Nov 2026 00:00:00 GMT")
        self.end_headers()
        self.wfile.write(b"" if self.command == "HEAD" else body.encode())

    do_HEAD = do_GET  # noqa: N815  (names of the base class)


class Torn(_Server):
    """Serves ranges of ``content``; breaks off answer after answer, as many bytes into each as in ``cuts``."""

    def __init__(self, content: bytes, cuts: list[int]) -> None:
        super().__init__(("127.0.0.1", 0), _TornHandler)
        self.content = content
        self.cuts = cuts
        self.ranges: list[tuple[int, int]] = []
        """Those that were asked for: first byte, and the one after the last."""


class _TornHandler(_Quiet):
    server: Torn

    def do_GET(self) -> None:
        first, last = self.headers["Range"].removeprefix("bytes=").split("-")
        start, end = int(first), int(last) + 1
        self.server.ranges.append((start, end))
        self.send_response(206)
        self.send_header("Content-Length", str(end - start))
        self.end_headers()
        cut = self.server.cuts.pop(0) if self.server.cuts else end - start
        self.wfile.write(self.server.content[start : min(end, start + cut)])
        self.close_connection = True


class Deletes(_Server):
    """Deletes objects one by one; of several at once ``refusal`` (status and code), or all where it is empty."""

    def __init__(self, refusal: tuple[int, str] | None = None) -> None:
        super().__init__(("127.0.0.1", 0), _DeletesHandler)
        self.refusal = refusal
        self.at_once: list[tuple[str, bytes]] = []
        """``Content-MD5`` and body of the requests for several."""
        self.deleted: list[str] = []


class _DeletesHandler(_Quiet):
    server: Deletes

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.at_once.append((self.headers.get("Content-MD5", ""), body))
        status, code = self.server.refusal or (200, "")
        answer = f"<Error><Code>{code}</Code></Error>" if code else "<DeleteResult></DeleteResult>"
        self.send_response(status)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer.encode())

    def do_DELETE(self) -> None:
        self.server.deleted.append(self.path.rpartition("/")[2])
        self.send_response(204)
        self.end_headers()


@contextmanager
def served(server: Server) -> Iterator[Server]:
    """Run ``server`` as long as the block."""
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def scripted(*statuses: int) -> Iterator[Scripted]:
    """A server that answers requests with ``statuses`` in turn."""
    with served(Scripted(list(statuses))) as server:
        yield server


@contextmanager
def silent() -> Iterator[str]:
    """Accepts connections and never answers."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(16)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"

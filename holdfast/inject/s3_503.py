"""The embedded S3 answers 503 Slow Down to everything, as one that is overloaded does."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

import psutil

from holdfast.deployments.local import pidfile, supervisor
from holdfast.errors import RefusedError, UnavailableError
from holdfast.inject import journal, service
from holdfast.settings import Settings

_BODY = (
    b'<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>SlowDown</Code>'
    b"<Message>Please reduce your request rate.</Message></Error>"
)
_FREE_S = 10.0


class _SlowDown(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def _answer(self) -> None:
        if (length := int(self.headers.get("Content-Length") or 0)) and length <= 1 << 20:
            self.rfile.read(length)
        self.close_connection = True
        self.send_response(503, "Slow Down")
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", "0" if self.command == "HEAD" else str(len(_BODY)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(_BODY)

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _answer  # noqa: N815  (as the library asks for)

    def log_message(self, *_: object) -> None:
        """Do nothing."""


@contextlib.contextmanager
def answering(settings: Settings, pen: journal.Pen) -> Iterator[None]:
    """Answer in place of the embedded S3, whose supervisor is suspended meanwhile; it restarts S3 afterwards.

    Raises:
        RefusedError: the site has no S3 of its own.
        UnavailableError: its port is not given free.
    """
    if not settings.embedded_s3:
        where = f"S3 at {settings.s3_endpoint}" if settings.stored_in_s3 else f"store {settings.store_url}"
        raise RefusedError(f"{where} is not this site's own: break it where it runs")
    keeper = pidfile.running(settings.home, supervisor.NAME)
    if keeper is None:
        raise RefusedError("the services of this site do not run on this host: nothing to break")
    pen.note(journal.StoppedProcess(pid=keeper.pid, created=keeper.create_time()))
    keeper.suspend()
    service.kill(settings, "s3")
    server = _listen(settings)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        with contextlib.suppress(psutil.Error):
            keeper.resume()


def _listen(settings: Settings) -> ThreadingHTTPServer:
    where = urlsplit(settings.s3)
    deadline = time.monotonic() + _FREE_S
    while True:
        try:
            return ThreadingHTTPServer((where.hostname or "127.0.0.1", where.port or 80), _SlowDown)
        except OSError as error:
            if time.monotonic() > deadline:
                raise UnavailableError(
                    f"{settings.s3}: {error.strerror}: nothing can answer in its place"
                ) from None
            time.sleep(0.05)

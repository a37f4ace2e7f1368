"""`holdfast up` with an S3 server elsewhere: its bucket must be there before anything is started."""

import socket
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from holdfast.deployments.local import control
from holdfast.errors import SettingsError
from holdfast.settings import Settings
from tests.e2e.waiting import free_ports

_DENIED = b"<Error><Code>AccessDenied</Code><Message>no</Message></Error>"


class Denying(BaseHTTPRequestHandler):
    """An S3 without our bucket, where we may not make one."""

    def do_HEAD(self) -> None:
        self.send_response(404)
        self.end_headers()

    def do_PUT(self) -> None:
        self.send_response(403)
        self.send_header("Content-Length", str(len(_DENIED)))
        self.end_headers()
        self.wfile.write(_DENIED)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Not on the terminal."""


@pytest.fixture
def endpoint() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Denying)
    thread = Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.e2e
def test_missing_bucket_is_named_and_nothing_stays_up(endpoint: str, tmp_path: Path) -> None:
    home = tmp_path / ".holdfast"
    settings = Settings(home=home, port=free_ports(), s3_endpoint=endpoint, s3_bucket="not-there")
    try:
        with pytest.raises(SettingsError, match=r"bucket 'not-there' at http.*HOLDFAST_S3_BUCKET"):
            control.up(settings, 1, lambda _: None)
        # Nothing half done: the same settings with a bucket would come up on the same ports.
        for port in range(settings.port, settings.port + 3):
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection((settings.host, port), 2)
    finally:
        control.down(home, lambda _: None)

"""A metadata service on loopback that never comes to the end of its answer."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import httpx
import pytest

from holdfast.agent.inspection.metadata_service import MetadataService

HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n"


class Endless:
    """Answers each connection with a beginning, and then one piece after the other, until it is closed."""

    def __init__(self, beginning: bytes, piece: bytes, pause_s: float) -> None:
        self._beginning, self._piece, self._pause_s = beginning, piece, pause_s
        self.over = threading.Event()
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with self._listening, self._listening.accept()[0] as connection:
            connection.recv(65536)
            try:
                connection.sendall(self._beginning)
                while not self.over.wait(self._pause_s):
                    connection.sendall(self._piece)
            except OSError:
                self.over.set()  # the other side left


@pytest.fixture
def served() -> Iterator[list[Endless]]:
    """Those that a test starts."""
    started: list[Endless] = []
    yield started
    for each in started:
        each.over.set()


@pytest.mark.parametrize("beginning", [HEAD + b"\r\n", HEAD + b"X-Slow: "], ids=["body", "header"])
def test_an_answer_that_comes_byte_by_byte_is_given_up(
    served: list[Endless], monkeypatch: pytest.MonkeyPatch, beginning: bytes
) -> None:
    """Each byte is in time; the whole never is, and later notices of a machine would not be seen."""
    monkeypatch.setattr("holdfast.agent.inspection.metadata_service.TIMEOUT_S", 0.5)
    service = Endless(beginning, b"x", 0.05)
    served.append(service)
    with pytest.raises(httpx.ReadTimeout, match="no whole answer"):
        MetadataService(service.url).get("/", {})
    assert service.over.wait(30), "the connection was left open"


def test_an_answer_without_an_end_fills_no_memory(
    served: list[Endless], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is given up by its length, however much time there is."""
    monkeypatch.setattr("holdfast.agent.inspection.metadata_service.TIMEOUT_S", 60.0)
    served.append(Endless(HEAD + b"\r\n", b"x" * 65536, 0.0))
    with pytest.raises(ValueError, match="more than 1048576 bytes"):
        MetadataService(served[0].url).get("/", {})

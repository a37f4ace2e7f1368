"""Connections to many agents: one for each, and not too many; failures are shown with httpx's own text."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable

import httpx
import pytest

from holdfast.agent import transport
from holdfast.agent.transport import AgentsClient, AgentTransport
from tests.e2e.waiting import DEADLINE_S


class Server:
    """Answers ``ok`` on every connection, ends it where it is asked to, and counts those that are open."""

    def __init__(self) -> None:
        self.opened: Counter[int] = Counter()
        self.open: Counter[int] = Counter()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        port = writer.get_extra_info("sockname")[1]
        self.opened[port] += 1
        self.open[port] += 1
        try:
            while asked := await reader.readuntil(b"\r\n\r\n"):
                ends = b"connection: close" in asked.lower()
                more = b"Connection: close\r\n" if ends else b""
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n" + more + b"\r\nok")
                if ends:
                    break
        except asyncio.IncompleteReadError:
            pass
        self.open[port] -= 1
        writer.close()


@pytest.fixture
async def agents() -> AsyncIterator[tuple[Server, list[str]]]:
    """Four of them."""
    server = Server()
    listening = [await asyncio.start_server(server.serve, "127.0.0.1") for _ in range(4)]
    yield server, [f"http://127.0.0.1:{each.sockets[0].getsockname()[1]}/" for each in listening]
    for each in listening:
        each.close()


async def test_a_connection_is_used_again(agents: tuple[Server, list[str]]) -> None:
    """Each agent has its own."""
    server, urls = agents
    async with AgentsClient() as client:
        for _ in range(3):
            answers = await asyncio.gather(*(client.get(url) for url in urls))
            assert [answer.text for answer in answers] == ["ok"] * 4
    assert set(server.opened.values()) == {1}


async def test_few_connections_stay_open(
    agents: tuple[Server, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """There may be more agents than files that may be open; those that were not used for long make room."""
    server, urls = agents
    ports = [int(url.rsplit(":", 1)[1].rstrip("/")) for url in urls]
    async with httpx.AsyncClient(transport=AgentTransport(most_open=2)) as client:
        for url in urls:
            await client.get(url)
        async with asyncio.timeout(DEADLINE_S):
            while sum(server.open.values()) > 2:  # noqa: ASYNC110  (the other side's end)
                await asyncio.sleep(0.01)
        assert {port for port, count in server.open.items() if count} == set(ports[:2])
        monkeypatch.setattr(transport, "IDLE_S", 0.0)
        await client.get(urls[3])
        assert server.open[ports[3]] == 1
        # More at once than may stay open: all are served.
        answers = await asyncio.gather(*(client.get(url) for url in urls))
        assert [answer.text for answer in answers] == ["ok"] * 4


async def test_no_listener_is_a_connect_error() -> None:
    """As with any client."""
    async with AgentsClient() as client:
        with pytest.raises(httpx.ConnectError):
            await client.get("http://127.0.0.1:1/")


async def _serve(talk: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]) -> str:
    listening = await asyncio.start_server(talk, "127.0.0.1")
    return f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}/"


async def test_no_answer_is_a_read_timeout() -> None:
    """The host is there and took the request: only the answer is missing."""

    async def listen(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        await reader.read()

    async with httpx.AsyncClient(transport=AgentTransport(), timeout=httpx.Timeout(60, read=0.2)) as client:
        with pytest.raises(httpx.ReadTimeout):
            await client.get(await _serve(listen))


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf"])
async def test_a_connection_that_breaks_is_no_silence(answer: bytes) -> None:
    """Whether before the answer or within it: the peer's side closed it."""

    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        writer.close()

    async with AgentsClient() as client:
        with pytest.raises(httpx.ReadError):
            await client.post(await _serve(hang_up), content="{}")


async def test_no_http_is_a_protocol_error() -> None:
    """Another service listens there."""

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 mail.example.com\r\n")
        await reader.read()

    async with AgentsClient() as client:
        with pytest.raises(httpx.RemoteProtocolError):
            await client.get(await _serve(greet))

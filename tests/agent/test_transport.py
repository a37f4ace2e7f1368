"""Connections to many agents: one pool each, and not too many."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator

import httpx
import pytest

from holdfast.agent.transport import AgentTransport


class Server:
    """Answers ``ok`` on every connection, and counts those that are open."""

    def __init__(self) -> None:
        self.opened: Counter[int] = Counter()
        self.open: Counter[int] = Counter()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        port = writer.get_extra_info("sockname")[1]
        self.opened[port] += 1
        self.open[port] += 1
        try:
            while await reader.readuntil(b"\r\n\r\n"):
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        except asyncio.IncompleteReadError:
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
    async with httpx.AsyncClient(transport=AgentTransport()) as client:
        for _ in range(3):
            answers = await asyncio.gather(*(client.get(url) for url in urls))
            assert [answer.text for answer in answers] == ["ok"] * 4
    assert set(server.opened.values()) == {1}


async def test_the_oldest_connections_are_closed(agents: tuple[Server, list[str]]) -> None:
    """There may be more agents than files that may be open."""
    server, urls = agents
    async with httpx.AsyncClient(transport=AgentTransport(most_open=2)) as client:
        for url in urls:
            await client.get(url)
        async with asyncio.timeout(5):
            while sum(server.open.values()) > 2:  # noqa: ASYNC110  (the other side's end)
                await asyncio.sleep(0.01)
        last = [int(url.rsplit(":", 1)[1].rstrip("/")) for url in urls[2:]]
        assert {port for port, count in server.open.items() if count} == set(last)
        # More at once than may stay open: all are served.
        answers = await asyncio.gather(*(client.get(url) for url in urls))
        assert [answer.text for answer in answers] == ["ok"] * 4


async def test_nobody_there_is_a_connect_error() -> None:
    """As with any client."""
    async with httpx.AsyncClient(transport=AgentTransport()) as client:
        with pytest.raises(httpx.ConnectError):
            await client.get("http://127.0.0.1:1/")

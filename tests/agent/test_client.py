"""The client of agents, against a socket that does what a busy agent may do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest

from holdfast.agent.client import AgentClient
from holdfast.errors import RefusedError, UnavailableError
from holdfast.models.agent import AgentState
from holdfast.operations import fleet
from tests.agent.site import Patient

_STATE = AgentState(machine="m0", incarnation="i1").model_dump_json().encode()


class Closing:
    """Answers ``answers`` requests of each connection, and closes it when the next one has arrived."""

    def __init__(self, answers: int) -> None:
        self.answers = answers
        self.connections = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        for _ in range(self.answers):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(_STATE) + _STATE)
        await reader.readexactly(1)
        writer.transport.abort()


@pytest.fixture
async def http() -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient() as client:
        yield client


async def test_a_command_on_a_connection_that_was_closed_meanwhile_is_sent_again(
    http: httpx.AsyncClient,
) -> None:
    """The connection was kept from the command before; on a new one it arrives."""
    agent = Closing(answers=1)
    async with await asyncio.start_server(agent.serve, "127.0.0.1") as server:
        client = Patient(f"127.0.0.1:{server.sockets[0].getsockname()[1]}", "secret", http=http)
        for _ in range(3):
            assert (await client.state()).machine == "m0"
    assert agent.connections == 3


async def test_an_agent_that_closes_every_connection_is_unavailable(http: httpx.AsyncClient) -> None:
    """Once more, and no further."""
    agent = Closing(answers=0)
    async with await asyncio.start_server(agent.serve, "127.0.0.1") as server:
        client = Patient(f"127.0.0.1:{server.sockets[0].getsockname()[1]}", "secret", http=http)
        with pytest.raises(UnavailableError, match=r"ReadError|RemoteProtocolError"):
            await client.state()
    assert agent.connections == 2


@pytest.mark.parametrize("answer", [b"", b"<html>hello</html>", b'{"machine": "m0"}', b"[1, 2]"])
async def test_an_answer_that_is_none_of_an_agent_is_refused_and_is_no_lost_machine(answer: bytes) -> None:
    """Another service has the port by now, or an agent of quite another release: a clear error of ours."""
    transport = httpx.MockTransport(lambda _: httpx.Response(200, content=answer))
    async with httpx.AsyncClient(transport=transport) as http:
        with pytest.raises(
            RefusedError, match=r"agent at h:1: its answer to GET /v1/state is none"
        ) as raised:
            await Patient("h:1", "secret", http=http).state()
    assert fleet.lost({"m0": raised.value}) == ()


async def test_an_error_carries_the_address_of_the_agent() -> None:
    """The report finds the machine by the address, not by the message."""
    address = "127.0.0.1:1"
    async with AgentClient(address, "s" * 32) as client:
        with pytest.raises(UnavailableError) as refused:
            await client.state()
    assert refused.value.address == address

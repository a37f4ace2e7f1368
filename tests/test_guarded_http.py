"""Half requests, drips and floods, by real sockets, on a server as gateway, agents and Prefect have it."""

from __future__ import annotations

import asyncio
import errno
import itertools
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from websockets.asyncio.client import connect

from holdfast import guarded_http
from holdfast.guarded_http import guarded, is_known
from holdfast.listen import listen
from holdfast.strangers import Strangers
from holdfast.tls import Tls
from tests import accepting
from tests.certificates import Authority

MOST_OF_ONE = 128
KNOWN = {"authorization": "ours"}
LARGE = b"x" * (32 << 20)


async def app(scope: Any, receive: Any, send: Any) -> None:
    """Reads the request to its end and answers 200; ``/large`` with more than a socket takes."""
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.accept"})
        await send({"type": "websocket.send", "text": (await receive())["text"]})
        return
    if (b"authorization", b"ours") in scope["headers"]:
        is_known(scope)
    while (await receive()).get("more_body"):
        pass
    body = LARGE if scope["path"] == "/large" else b"ok"
    length = str(len(body)).encode()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", length)]})
    await send({"type": "http.response.body", "body": body})


@asynccontextmanager
async def served(certified: Tls | None = None) -> AsyncIterator[int]:
    """Its port."""
    with listen("127.0.0.1", 0, 512) as listening:
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            lifespan="off",
            http=guarded(Strangers(10, MOST_OF_ONE)),
            timeout_keep_alive=60,
        )
        config.load()
        config.ssl = certified.server() if certified else None
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server.serve(sockets=[listening]))
        await until(lambda: server.started)
        yield listening.getsockname()[1]
        server.should_exit = True
        server.force_exit = True
        await serving


async def until(condition: Callable[[], bool]) -> None:
    """Wait for the condition."""
    async with asyncio.timeout(90):
        while not condition():  # noqa: ASYNC110  (there is no event)
            await asyncio.sleep(0.01)


async def opened(port: int, first: bytes = b"") -> socket.socket:
    """A connection that has sent so much."""
    loop, made = asyncio.get_running_loop(), socket.socket()
    made.setblocking(False)
    await loop.sock_connect(made, ("127.0.0.1", port))
    if first:
        await loop.sock_sendall(made, first)
    return made


async def ended(connection: socket.socket) -> bool:
    """Wait until the other side has ended it."""
    async with asyncio.timeout(90):
        try:
            while await asyncio.get_running_loop().sock_recv(connection, 1 << 16):
                pass
        except ConnectionError:
            pass
    connection.close()
    return True


async def answers(port: int, scheme: str = "http", **options: Any) -> bool:
    """Whether a well-behaved client is served."""
    async with httpx.AsyncClient(timeout=90, **options) as client:
        return (await client.get(f"{scheme}://127.0.0.1:{port}/")).is_success


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Shorter patience."""

    def shorten(**seconds: float) -> None:
        for name, value in seconds.items():
            monkeypatch.setattr(guarded_http, name, value)

    return shorten


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], Awaitable[None]]:
    """Has so many seconds pass by the loop's clock, in which nothing happens."""

    async def passes(seconds: float) -> None:
        loop = asyncio.get_running_loop()
        before = loop.time
        monkeypatch.setattr(loop, "time", lambda: before() + seconds)
        for _ in range(5):
            await asyncio.sleep(0.01)

    return passes


WHOLE = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
HALVES = {
    "nothing": b"",
    "half a head": b"GET / HTTP/1.1\r\nHost: a\r\nX-Half",
    "no body": b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\n",
    "half a body": b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\n12345",
    "half of a second": b"GET / HTTP/1.1\r\nHost: a\r\n\r\nGET / HTTP/1.1\r\nHo",
}


@pytest.mark.parametrize("half", HALVES.values(), ids=HALVES)
async def test_half_a_request_is_ended(soon: Callable[..., None], half: bytes) -> None:
    """Also behind a whole one."""
    soon(HEAD_S=0.1, BODY_S=0.1)
    async with served() as port:
        assert await ended(await opened(port, half))


@pytest.mark.parametrize("start", [HALVES["half a head"], HALVES["no body"]], ids=["head", "body"])
async def test_a_drip_does_not_prolong_it(soon: Callable[..., None], start: bytes) -> None:
    """Byte by byte: the deadline is that of the whole."""
    soon(HEAD_S=0.3, BODY_S=0.3)
    async with served() as port:
        connection = await opened(port, start)

        async def drip() -> None:
            for _ in itertools.count():
                await asyncio.get_running_loop().sock_sendall(connection, b"1")
                await asyncio.sleep(0.05)

        dripping = asyncio.create_task(drip())
        assert await ended(connection)
        dripping.cancel()
        await asyncio.gather(dripping, return_exceptions=True)


async def test_an_endless_head_is_ended() -> None:
    """Long before its time is over, and without being kept."""
    async with served() as port:
        connection = await opened(port, b"GET / HTTP/1.1\r\n")
        with pytest.raises(ConnectionError):
            await _say_headers(connection, 1000)
        connection.close()


CHUNKED = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize("start", [b"0\r\n", b"2\r\nok\r\n0\r\n"], ids=["no body", "a body"])
async def test_endless_trailers_are_ended(start: bytes) -> None:
    """Fields behind a body are kept as those before it are: without a limit they were all the memory there is."""
    async with served() as port:
        connection = await opened(port, CHUNKED + start)
        with pytest.raises(ConnectionError):
            await _say_headers(connection, 1000)
        connection.close()


@pytest.mark.parametrize("start", [b"0\r\nX-Long: ", b"2;x="], ids=["a trailer", "an extension of a chunk"])
async def test_one_that_has_no_end_is_ended(start: bytes) -> None:
    """llhttp reports it when it is complete, and until then keeps it or passes over it."""
    async with served() as port:
        connection = await opened(port, CHUNKED + start)
        with pytest.raises(ConnectionError):
            await _say(connection, itertools.repeat(b"y" * 4096, 1000))
        connection.close()


async def test_a_head_that_comes_at_once_has_the_same_limit() -> None:
    """One that ends within the first piece that is read; a body of that size is no head."""
    async with served() as port, httpx.AsyncClient(timeout=90) as client:
        large = "y" * (guarded_http.MAX_HEAD_BYTES + 1)
        url = f"http://127.0.0.1:{port}/"
        assert (await client.get(url, headers={"X-Long": large})).status_code == 400
        assert (await client.get(url, headers={f"X-{n}": "y" * 1000 for n in range(80)})).status_code == 400
        assert (await client.post(url, content=large)).is_success


async def test_requests_ahead_of_their_turn_are_bounded() -> None:
    """Each takes a few KiB while it waits, and a stranger can send ten thousand in one piece."""
    async with served() as port:
        connection, loop = await opened(port), asyncio.get_running_loop()
        await loop.sock_sendall(connection, WHOLE * (guarded_http.MOST_AHEAD + 1))
        got = b""
        while got.count(b"200 OK") <= guarded_http.MOST_AHEAD:
            got += await loop.sock_recv(connection, 1 << 16)
        assert b"400" not in got
        await loop.sock_sendall(connection, WHOLE * 1000)
        got = b""
        async with asyncio.timeout(90):
            while some := await loop.sock_recv(connection, 1 << 16):
                got += some
        assert b"400 Bad Request" in got
        connection.close()


async def _say_headers(connection: socket.socket, count: int) -> None:
    await _say(connection, (b"X-%d: %s\r\n" % (number, b"y" * 4096) for number in range(count)))


async def _say(connection: socket.socket, parts: Iterable[bytes]) -> None:
    for part in parts:
        await asyncio.get_running_loop().sock_sendall(connection, part)
        await asyncio.sleep(0)


async def test_an_answer_that_is_not_read_is_not_kept(soon: Callable[..., None]) -> None:
    """Requested and not read; the same answer reaches a client that reads it whole."""
    soon(STALL_S=0.5)
    async with served() as port:
        connection = await opened(port, b"GET /large HTTP/1.1\r\nHost: a\r\n\r\n")
        await until(lambda: is_reset(connection))
        connection.close()
        soon(STALL_S=60.0)
        async with httpx.AsyncClient(timeout=90) as client:
            assert len((await client.get(f"http://127.0.0.1:{port}/large")).content) == len(LARGE)


def is_reset(connection: socket.socket) -> bool:
    """Whether the other side has cut it off, without reading what came."""
    try:
        connection.send(b"G")
    except BlockingIOError:
        return False
    except ConnectionError:
        return True
    return False


async def test_an_idle_connection_has_no_deadline_of_a_request(
    soon: Callable[..., None], later: Callable[[float], Awaitable[None]]
) -> None:
    """Heartbeats share one; the time of the first request ended with it, and with the second."""
    soon(HEAD_S=20.0, BODY_S=20.0)
    async with served() as port:
        connection, loop = await opened(port), asyncio.get_running_loop()
        for request in (WHOLE, WHOLE[:20], WHOLE[20:], WHOLE):
            await loop.sock_sendall(connection, request)
            if request.endswith(b"\r\n\r\n"):
                assert b"200 OK" in await loop.sock_recv(connection, 1 << 16)
                await later(25.0)
        connection.close()


async def test_a_stream_has_no_deadline_of_a_request(
    soon: Callable[..., None], later: Callable[[float], Awaitable[None]]
) -> None:
    """Prefect's events and commands come by such, now and then; it is no stranger's place that it takes, either."""
    soon(HEAD_S=15.0, BODY_S=15.0)
    async with served() as port, connect(f"ws://127.0.0.1:{port}/") as stream:
        flood = [await opened(port) for _ in range(MOST_OF_ONE + 10)]
        assert await answers(port), "all that came before are accepted"
        await later(16.0)
        for each in flood:
            assert await ended(each)
        await stream.send("still here")
        assert await stream.recv() == "still here"


async def test_a_flood_of_half_requests_keeps_no_client_out() -> None:
    """300 of them wait, and one of us is served at once: before and after, by old connections and new."""
    async with served() as port, httpx.AsyncClient(timeout=90, headers=KNOWN) as ours:
        assert (await ours.get(f"http://127.0.0.1:{port}/")).is_success
        flood = [await opened(port, HALVES["half a head"]) for _ in range(300)]
        assert await answers(port)
        assert await answers(port, headers=KNOWN)
        assert (await ours.get(f"http://127.0.0.1:{port}/")).is_success
        async with asyncio.timeout(guarded_http.HEAD_S / 2):  # before any deadline
            assert all([await ended(each) for each in flood[: 300 - MOST_OF_ONE]]), "the oldest give way"
        for each in flood:
            each.close()


async def test_one_of_us_is_never_taken_for_a_stranger() -> None:
    """An idle connection that was served with the secret stays, whatever comes."""
    async with served() as port:
        limits = httpx.Limits(max_connections=1)
        async with httpx.AsyncClient(timeout=90, headers=KNOWN, limits=limits) as ours:
            first = await ours.get(f"http://127.0.0.1:{port}/")
            own = first.extensions["network_stream"].get_extra_info("client_addr")
            flood = [await opened(port, b"") for _ in range(300)]
            again = await ours.get(f"http://127.0.0.1:{port}/")
            assert again.extensions["network_stream"].get_extra_info("client_addr") == own
            for each in flood:
                each.close()


async def test_a_handshake_that_does_not_end_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And delays no other client's meanwhile."""
    # A server sets it for its whole process, and so it would stay for the tests after this one.
    monkeypatch.setattr(asyncio.constants, "SSL_HANDSHAKE_TIMEOUT", asyncio.constants.SSL_HANDSHAKE_TIMEOUT)
    pki = Authority(tmp_path)
    certified = Tls(*pki.certify("site", "127.0.0.1"), pki.ca)
    for patience_s, in_vain in ((60.0, False), (0.3, True)):
        monkeypatch.setattr("holdfast.tls.HANDSHAKE_S", patience_s)
        async with served(certified) as port:
            silent = [await opened(port) for _ in range(50)]
            half = await opened(port, b"\x16\x03\x01\x02\x00\x01")
            if in_vain:
                assert all([await ended(each) for each in [*silent, half]])
                continue
            verify = ssl.create_default_context(cafile=pki.ca)
            assert await answers(port, "https", verify=verify)
            for each in [*silent, half]:
                each.close()


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENOMEM, errno.ECONNABORTED])
async def test_it_goes_on_accepting_after_an_error(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Too many open files, no memory, a connection that was gone before it was taken: asyncio waits and goes on."""
    monkeypatch.setattr(asyncio.constants, "ACCEPT_RETRY_DELAY", 0.01)
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)
    async with served() as port:
        failed = accepting.fail_twice(monkeypatch, number)
        assert await answers(port)
    assert failed == [number] * 2

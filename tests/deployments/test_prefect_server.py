"""The collector of the embedded Prefect server does not stop its event loop."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from inspect import getsource
from pathlib import Path

import pytest
from prefect.client.orchestration import PrefectClient
from starlette.types import Message, Receive, Scope, Send

from holdfast.deployments.local import prefect_server

# A cursor becomes garbage while its connection waits for the lock that a transaction of this loop holds. Then comes
# enough garbage for an automatic collection of all generations: the cursor may have grown old on the way. With the
# modules frozen the collector knows of few old objects, so it does not put that off.
SCRIPT = """
import asyncio, gc, os, sys, threading
import aiosqlite
from holdfast.deployments.local import prefect_server

class Garbage:
    def __init__(self, held=None):
        self.held, self.me = held, self

async def main(path):
    if sys.argv[2] == "aside":
        prefect_server.collect_aside()
    holder, waiter = [await aiosqlite.connect(path, isolation_level=None) for _ in range(2)]
    await holder.execute("pragma journal_mode=wal")
    # As usual the loop stands still until it is over; aside nothing does, however late the other thread is.
    await waiter.execute(f"pragma busy_timeout={60_000 if sys.argv[2] == 'aside' else 3000}")
    gc.collect()
    gc.freeze()
    gc.collect()
    garbage = Garbage(await waiter.execute("select 1 union select 2"))
    await garbage.held.fetchone()
    await holder.execute("begin immediate")
    began = threading.Event()
    await waiter.set_trace_callback(lambda _: began.set())
    waiting = asyncio.create_task(waiter.execute("begin immediate"))
    while not began.is_set():
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.1)
    del garbage
    for _ in range(200_000):
        Garbage()
    await holder.execute("commit")
    try:
        await waiting
    except aiosqlite.OperationalError as error:
        print(error, flush=True)
    else:
        print("went on", flush=True)
    os._exit(0)

asyncio.run(main(sys.argv[1]))
"""


# SQLite's text of an error is read after it, and may be that of the cursor's end.
LOCKED = ("database is locked", "not an error")


@pytest.mark.parametrize(("how", "printed"), [("aside", ("went on",)), ("as usual", LOCKED)])
def test_garbage_does_not_stop_the_event_loop(how: str, printed: tuple[str, ...], tmp_path: Path) -> None:
    """Collected as usual, a dead cursor does so until SQLite gives the lock up: why the collector has a thread."""
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "db"), how]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.stdout.strip() in printed, done.stderr


async def test_a_stream_without_a_first_word_is_ended() -> None:
    """One that sends something is read on, for as long as it likes."""
    never: asyncio.Queue[Message] = asyncio.Queue()
    for words in ([], ["credentials"]):
        received: list[str] = []
        for each in (
            {"type": "websocket.connect"},
            *({"type": "websocket.receive", "text": t} for t in words),
        ):
            never.put_nowait(each)

        async def app(_scope: Scope, receive: Receive, _send: Send) -> None:
            while (message := await receive())["type"] != "websocket.disconnect":
                received.append(message["type"])  # noqa: B023

        wrapped = prefect_server.first_word_soon(app, 0.05)
        served = asyncio.ensure_future(wrapped({"type": "websocket"}, never.get, _unsent))
        if words:
            while len(received) <= len(words):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.3)
            assert not served.done()
            served.cancel()
        else:
            await asyncio.wait_for(served, 60)
        assert received == ["websocket.connect", *("websocket.receive" for _ in words)]


async def _unsent(_: Message) -> None:
    raise AssertionError("nothing is sent")


def test_idle_connections_are_kept_for_longer_than_clients_keep_them() -> None:
    """Unless a site has them kept even longer."""
    kept_s = prefect_server.patient({"timeout_keep_alive": 5, "port": 4200})["timeout_keep_alive"]
    sent = getsource(PrefectClient.__init__)
    assert (found := re.search(r"keepalive_expiry=(\d+)", sent)), "Prefect's client has another way to say it"
    assert kept_s > int(found[1])
    assert prefect_server.patient({"timeout_keep_alive": 900}) == {"timeout_keep_alive": 900}

"""The agent's side of the carrier process, where that one takes no messages or gives half of one."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from multiprocessing.connection import Connection
from types import SimpleNamespace
from typing import Any, cast

import pytest

from holdfast.agent.checkpoints import transfer_process
from holdfast.agent.checkpoints.transfer_process import TransferProcess
from holdfast.agent.ranks.forkserver import ForkServer
from holdfast.errors import CheckpointError, UnavailableError
from holdfast.settings import Settings

LARGE = "x" * (1 << 16)
MANY = 40
"""Of these, more than any pipe takes."""


class Forks:
    """Keeps the other end, as a process that was stopped does."""

    def __init__(self) -> None:
        self.ends: list[Connection[Any, Any]] = []
        self.forked = asyncio.Event()

    async def fork_soon(self, _target: object, args: tuple[Any, ...]) -> object:
        self.ends.append(Connection(os.dup(args[2].fileno())))
        self.forked.set()
        return object()


@pytest.fixture
def forks() -> Forks:
    return Forks()


@pytest.fixture
async def carrier(forks: Forks, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[TransferProcess]:
    monkeypatch.setattr(transfer_process, "Watched", lambda *_: SimpleNamespace(kill=lambda: None))
    made = TransferProcess(cast(ForkServer, forks), Settings())
    yield made
    made.close()
    for end in forks.ends:
        end.close()


async def asked(carrier: TransferProcess, forks: Forks, number: int = MANY) -> list[asyncio.Task[Any]]:
    """Calls of which the first fill the pipe."""
    await carrier.start()
    calls = [asyncio.create_task(carrier.call(f"put {n}", 60.0, path=LARGE)) for n in range(number)]
    await asyncio.sleep(0)
    return calls


async def test_a_process_that_takes_no_messages_keeps_no_heartbeat_waiting(
    carrier: TransferProcess, forks: Forks
) -> None:
    """It may be stopped, or swap: calls wait, the loop does not, and what was asked first is done first."""
    begun = time.monotonic()
    calls = await asyncio.wait_for(asked(carrier, forks), 30)
    for _ in range(10):
        await asyncio.sleep(0)
    assert time.monotonic() - begun < 30, "the loop stood"
    (end,) = forks.ends
    seen = []
    for _ in range(MANY):
        number, operation, _ = await asyncio.to_thread(end.recv)
        seen.append(operation)
        await asyncio.to_thread(end.send, (number, True, operation))
    assert seen == [f"put {n}" for n in range(MANY)]
    assert await asyncio.gather(*calls) == seen


async def test_calls_that_were_given_up_are_not_done_late(carrier: TransferProcess, forks: Forks) -> None:
    """Only calls with a waiting caller are queued for a stopped process: no backlog grows."""
    calls = await asked(carrier, forks)
    for call in calls:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)
    last = asyncio.create_task(carrier.call("last", 60.0))
    (end,), seen = forks.ends, []
    while not seen or seen[-1] != "last":
        number, operation, _ = await asyncio.to_thread(end.recv)
        seen.append(operation)
    end.send((number, True, None))
    await last
    assert len(seen) < MANY


async def test_half_an_answer_keeps_no_heartbeat_waiting(carrier: TransferProcess, forks: Forks) -> None:
    """The process was stopped in the middle of it, then killed: its calls fail, and the next starts another."""
    (call,) = await asked(carrier, forks, 1)
    (end,) = forks.ends
    await asyncio.to_thread(end.recv)
    os.write(end.fileno(), (1000).to_bytes(4, "big") + b"half")
    await asyncio.sleep(0.01)
    assert not call.done()
    end.close()
    with pytest.raises(UnavailableError, match="transfer process ended"):
        await asyncio.wait_for(call, 30)
    forks.ends.clear()
    forks.forked.clear()
    again = asyncio.create_task(carrier.call("again", 60.0))
    await asyncio.wait_for(forks.forked.wait(), 30)
    number, _, _ = await asyncio.to_thread(forks.ends[0].recv)
    forks.ends[0].send((number, False, ("CheckpointError", "no")))
    with pytest.raises(CheckpointError, match="no"):
        await again


async def test_a_carrier_that_is_closed_leaves_no_call_waiting(
    carrier: TransferProcess, forks: Forks
) -> None:
    """Nor a thread: also one that is in the middle of a message."""
    calls = await asked(carrier, forks)
    line = carrier._line
    assert line is not None
    carrier.close()
    found = await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), 30)
    assert {type(each) for each in found} == {UnavailableError}
    await asyncio.to_thread(line._receiver.join, 30)
    assert not line._receiver.is_alive()
    assert not line._sender.is_alive()

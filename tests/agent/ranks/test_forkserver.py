"""Spare processes of the fork server."""

import asyncio
import contextlib
import os
import signal
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest

from holdfast.agent.ranks import forkserver
from holdfast.agent.ranks.forkserver import ForkServer
from holdfast.agent.ranks.processes import Watched, stop
from tests.e2e.waiting import wait_for

pytestmark = pytest.mark.e2e


def say_pid(path: str) -> None:
    """Body of the test's processes."""
    Path(path).write_text(str(os.getpid()))


@pytest.fixture
async def forks(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ForkServer]:
    monkeypatch.setattr(forkserver, "_CALM_S", 0.0)
    server = ForkServer([])
    await server.warm_up()
    yield server
    for spare in server._spares:
        spare.orders.close()
        await asyncio.to_thread(spare.process.join)


async def with_spares(server: ForkServer, count: int) -> None:
    there = asyncio.Event()

    def want() -> int:
        if server.waiting == count:
            there.set()
        return count

    keeping = asyncio.create_task(server.keep_spares(want))
    await asyncio.wait_for(there.wait(), 60)
    keeping.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await keeping


async def test_spare_runs_what_it_is_ordered(forks: ForkServer, tmp_path: Path) -> None:
    await with_spares(forks, 1)
    spare = forks._spares[0].process
    process = await forks.run_soon(say_pid, (str(tmp_path / "pid"),))
    assert process is spare
    await asyncio.to_thread(process.join)
    assert (tmp_path / "pid").read_text() == str(process.pid)


async def test_without_a_spare_it_is_forked(forks: ForkServer, tmp_path: Path) -> None:
    process = await forks.run_soon(say_pid, (str(tmp_path / "pid"),))
    await asyncio.to_thread(process.join)
    assert (tmp_path / "pid").read_text() == str(process.pid)


async def test_dead_spare_is_passed_over(forks: ForkServer, tmp_path: Path) -> None:
    await with_spares(forks, 2)
    dead = forks._spares[-1].process
    assert dead.pid is not None
    os.kill(dead.pid, signal.SIGKILL)
    await asyncio.to_thread(dead.join)
    process = await forks.run_soon(say_pid, (str(tmp_path / "pid"),))
    await asyncio.to_thread(process.join)
    assert process is not dead
    assert (tmp_path / "pid").read_text() == str(process.pid)


async def test_a_spare_that_rehearses_is_left_alone(
    forks: ForkServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new process answers earlier; one that has settled is taken, whatever came after it."""
    await with_spares(forks, 2)
    settled, rehearsing = (spare.process for spare in forks._spares)
    waits = forkserver.Spare.waits
    monkeypatch.setattr(
        forkserver.Spare,
        "waits",
        property(lambda spare: spare.process is not rehearsing and waits.__get__(spare)),
    )
    for number, expected in enumerate((True, False)):
        process = await forks.run_soon(say_pid, (str(tmp_path / f"pid{number}"),))
        assert (process is settled) is expected
        assert process is not rehearsing
        await asyncio.to_thread(process.join)


async def test_a_spare_that_is_taken_meanwhile_does_not_wait(forks: ForkServer, tmp_path: Path) -> None:
    """Another thread may close its pipe while they are counted."""
    await with_spares(forks, 1)
    spare = forks._spares[0]
    assert spare.waits
    process = await forks.run_soon(say_pid, (str(tmp_path / "pid"),))
    assert not spare.waits
    await asyncio.to_thread(process.join)


def say_environment(path: str) -> None:
    """Body of the test's processes."""
    Path(path).write_text(f"{os.environ.get('ADDED')} {os.environ.get('REMOVED')} {tempfile.gettempdir()}")


async def test_forks_of_a_given_server_have_the_agents_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the environment of the process was that loaded the libraries for several agents."""
    monkeypatch.setenv("REMOVED", "before")
    server = ForkServer([])
    await server.warm_up()
    monkeypatch.setattr(server, "_given", True)
    monkeypatch.delenv("REMOVED")
    monkeypatch.setenv("ADDED", "since")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    process = await server.fork_soon(say_environment, (str(tmp_path / "said"),))
    await asyncio.to_thread(process.join)
    assert (tmp_path / "said").read_text() == f"since None {tmp_path}"


def test_a_server_with_other_modules_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its end is asked for: the agent starts one of its own."""
    here, there = os.pipe()
    monkeypatch.setenv(
        forkserver.ENV_GIVEN, forkserver.GivenForkServer(1, there, ("json",), "life@unit").dumped()
    )
    given = forkserver.GivenForkServer.taken()
    assert given == forkserver.GivenForkServer(1, there, ("json",), "life@unit")
    assert not given.used(["json", "wave"])
    assert os.read(here, 1) == b""
    os.close(here)
    assert forkserver.ENV_GIVEN not in os.environ


async def test_a_process_that_died_before_it_was_ended_is_reported(forks: ForkServer) -> None:
    """The fork server, which reaps it, is late on a busy host: the order to end all may come in between."""
    reported: list[tuple[int, int | None]] = []
    started = [
        Watched(
            await forks.run_soon(time.sleep, (600,)),
            rank,
            lambda each: reported.append((each.rank, each.exit_code)),
        )
        for rank in range(2)
    ]
    reaper = psutil.Process(psutil.Process(started[0].pid).ppid())
    reaper.suspend()
    try:
        os.kill(started[0].pid, signal.SIGKILL)
        await asyncio.to_thread(wait_for, "it is dead", started[0]._has_ended)
        ending = asyncio.create_task(stop(started))
        await asyncio.to_thread(wait_for, "both are dead", started[1]._has_ended)
    finally:
        reaper.resume()
    assert await ending == [0, 1]
    assert reported == [(0, -signal.SIGKILL)]
    assert [each.ordered for each in started] == [False, True]


async def test_a_process_that_is_gone_is_not_killed_again(
    forks: ForkServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process may have its number by then, and lead a group of that number."""
    process = Watched(await forks.run_soon(time.sleep, (600,)), 0)
    process.kill()
    await asyncio.wait_for(process.gone, 60)
    hit: list[int] = []
    monkeypatch.setattr(os, "killpg", lambda group, _: hit.append(group))
    process.kill()
    assert not hit

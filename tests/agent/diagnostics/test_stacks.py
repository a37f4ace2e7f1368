"""Stack dumps of real processes."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from holdfast.agent.diagnostics import stacks
from holdfast.commands import Ended
from holdfast.models.agent import StackDump
from tests.e2e.waiting import DEADLINE_S, wait_for

SCRIPT = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time\\ndef load():\\n    time.sleep(600)\\nload()"])
other = subprocess.Popen(["sleep", "600"])
def wait_for_others():
    time.sleep(600)
print("ready", flush=True)
wait_for_others()
"""

pytestmark = pytest.mark.e2e


@pytest.fixture
def rank(tmp_path: Path) -> Iterator[int]:
    """A process like a rank: a Python child, another child, and a wait."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    process = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE)
    assert process.stdout
    process.stdout.readline()
    tree = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
    yield process.pid
    for each in tree:
        if each.is_running():
            each.kill()
    process.wait()
    process.stdout.close()


def stopped(pid: int) -> bool:
    return psutil.Process(pid).status() == psutil.STATUS_STOPPED


async def functions(rank: int, *, child: bool, wanted: str) -> list[StackDump]:
    """Dumps of the rank or its children; taken again until ``wanted`` has been called."""
    deadline = time.monotonic() + DEADLINE_S
    while True:
        dumps = [each for each in await stacks.dump("m0", {3: rank}) if each.child is child]
        if any(frame.function == wanted for each in dumps for frame in each.frames):
            return dumps
        assert time.monotonic() < deadline, dumps


async def test_rank_is_dumped_innermost_frame_first(rank: int) -> None:
    """Function and file of the wait are named; the file without its folder, which differs by machine."""
    [dump] = await functions(rank, child=False, wanted="wait_for_others")
    assert (dump.machine, dump.rank, dump.pid, dump.thread) == ("m0", 3, rank, "MainThread")
    assert [frame.function for frame in dump.frames] == ["wait_for_others", "<module>"]
    assert dump.frames[0].file == "script.py"
    assert [frame.source for frame in dump.frames] == ["time.sleep(600)", ""]
    assert dump.error == ""


async def test_children_are_dumped_and_marked(rank: int) -> None:
    """One that is no Python has its state and the reason, not a stack."""
    dumps = await functions(rank, child=True, wanted="load")
    assert {bool(dump.error) for dump in dumps} == {True, False}
    assert all(dump.rank == 3 and dump.pid != rank for dump in dumps)
    assert all("\n" not in dump.error for dump in dumps)


async def test_stopped_process_is_read_as_it_stands(rank: int) -> None:
    """State T is reported with the stack, quickly, and the process stays stopped."""
    await functions(rank, child=False, wanted="wait_for_others")
    os.kill(rank, signal.SIGSTOP)
    wait_for("the stop", lambda: stopped(rank), every_s=0.0)
    [dump] = [each for each in await stacks.dump("m0", {3: rank}) if not each.child]
    assert dump.process_state == "T"
    assert dump.frames or dump.error
    assert stopped(rank)


async def test_source_on_a_mount_that_does_not_answer_is_left_out(
    rank: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader that cannot be killed delays one dump by a moment, and the next ones not at all."""
    await functions(rank, child=False, wanted="wait_for_others")
    real, started, over = stacks.run, [], asyncio.Event()

    async def run(command: list[str], timeout_s: float, kept: int = 0) -> Ended:
        if command[0] != "sed":
            return await real(command, timeout_s, kept)
        started.append(command)
        await over.wait()
        return Ended(status=None)

    monkeypatch.setattr(stacks, "run", run)
    monkeypatch.setattr(stacks, "_SOURCE_S", 0.01)
    for _ in range(3):
        [dump] = [each for each in await stacks.dump("m0", {3: rank}) if not each.child]
        assert dump.frames
        assert dump.frames[0].source == ""
    assert len(started) == 1
    over.set()
    await asyncio.gather(*stacks._hanging)


async def test_process_that_is_gone_is_an_error_not_an_exception() -> None:
    """Its rank is named all the same."""
    gone = await asyncio.create_subprocess_exec("true")
    await gone.wait()
    [dump] = await stacks.dump("m0", {5: gone.pid})
    assert dump.rank == 5
    assert "no such process" in dump.error


async def test_dump_that_takes_too_long_is_given_up(
    rank: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A recovery does not wait for its tools."""
    slow = tmp_path / "py-spy"
    slow.write_text("#!/bin/sh\nexec sleep 600\n")
    slow.chmod(0o755)
    monkeypatch.setattr(stacks, "_program", lambda: str(slow))
    dumps = await stacks.dump("m0", {0: rank}, timeout_s=0.05)
    assert all("did not answer" in dump.error for dump in dumps)


async def test_missing_py_spy_says_what_to_install(rank: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The state is still evidence."""
    monkeypatch.setattr(stacks, "_program", lambda: "/nonexistent/py-spy")
    dumps = await stacks.dump("m0", {0: rank})
    assert all("pip install py-spy" in dump.error and dump.process_state for dump in dumps)

"""What the processes of a rank do before its first step, by the kernel's own counts."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from holdfast.agent.ranks.processes import Watched

TOKENISES = """
import os, subprocess, sys
child = subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"])
with open(os.devnull, "wb") as file:
    file.write(b"x" * 3_000_000)
print("written", flush=True)
child.wait()
"""


@pytest.fixture
def prepares() -> Iterator[subprocess.Popen[str]]:
    """A process that writes, and waits for a child that computes."""
    parent = subprocess.Popen(
        [sys.executable, "-S", "-c", TOKENISES], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        yield parent
    finally:
        subprocess.run(["kill", "-KILL", "--", f"-{parent.pid}"], check=False)
        parent.wait(60)
        if parent.stdout:
            parent.stdout.close()


def test_children_and_bytes_count_as_work(prepares: subprocess.Popen[str]) -> None:
    """A rank that only waits for its tokeniser uses no processor itself."""
    assert prepares.stdout is not None
    assert prepares.stdout.readline() == "written\n"
    rank = SimpleNamespace(pid=prepares.pid)
    cpu_s, moved = Watched.work(rank)  # type: ignore[arg-type]
    assert moved >= 3_000_000
    deadline = time.monotonic() + 90
    while Watched.work(rank)[0] < cpu_s + 0.1:  # type: ignore[arg-type]
        assert time.monotonic() < deadline, "the child's processor time is not seen"
        time.sleep(0.01)


def test_who_is_gone_does_nothing() -> None:
    """Between its end and the agent's noticing it."""
    ended = subprocess.Popen([sys.executable, "-S", "-c", ""])
    ended.wait(60)
    assert Watched.work(SimpleNamespace(pid=ended.pid)) == (0.0, 0)  # type: ignore[arg-type]

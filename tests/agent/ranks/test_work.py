"""Work of a rank's processes before its first step and while one is late, by the kernel's own counts."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace

import pytest

from holdfast.agent.ranks import proc, processes, rank_report
from holdfast.agent.ranks.processes import Watched
from holdfast.agent.ranks.rank_table import RankStatus

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


@pytest.fixture
def crowded() -> Iterator[int]:
    """A process that computes, and gets next to nothing of the processor that it shares."""
    shared = min(os.sched_getaffinity(0))
    spin = [sys.executable, "-S", "-c", f"import os; os.sched_setaffinity(0, {{{shared}}})\nwhile True: pass"]
    others = [subprocess.Popen(spin) for _ in range(2)]
    starved = subprocess.Popen(["nice", "-n", "19", *spin])
    try:
        yield starved.pid
    finally:
        for each in (*others, starved):
            each.kill()
            each.wait(60)


def test_who_waits_for_a_processor_is_not_idle(crowded: int) -> None:
    """Among others that take it, one that computes shows more than it gets."""
    rank = SimpleNamespace(pid=crowded)
    deadline = time.monotonic() + 90
    while Watched.usage(rank)[0] < 1.0:  # type: ignore[arg-type]
        assert time.monotonic() < deadline, "neither its processor time nor its waits are seen"
        time.sleep(0.01)
    _, fields = proc.stat(crowded)
    assert processes._cpu_s(fields) < 0.5


def test_who_sleeps_waits_for_no_processor() -> None:
    """A rank in a collective, as the kernel sees it."""
    asleep = subprocess.Popen(["sleep", "600"])
    try:
        deadline, before = time.monotonic() + 90, -1.0
        while (waited := proc.waited_s(asleep.pid)) != before:  # it is started, on a busy host slowly
            assert time.monotonic() < deadline
            before = waited
            time.sleep(0.2)
    finally:
        asleep.kill()
        asleep.wait(60)


def test_what_children_do_is_looked_at_while_a_step_is_late(tmp_path: Path) -> None:
    """A rank that makes steps is spared the look at all that it started."""
    seen_by_kernel = {"usage": lambda: (1.0, "S"), "work": lambda: (30.0, 9)}
    rank = SimpleNamespace(pid=1, gone=Future(), ordered=False, exit_code=None, **seen_by_kernel)
    row, now = RankStatus(rank=0), time.time()

    def work(ago_s: float, steps: int, step_s: float = 0.1) -> tuple[float, int]:
        row.step_at, row.steps_done, row.step_s = now - ago_s, steps, step_s
        state = rank_report.state(rank, row, tmp_path / "log", "")  # type: ignore[arg-type]
        return state.children_cpu_s, state.io_bytes

    assert work(0.2, steps=5) == work(60.0, steps=5, step_s=40.0) == (0.0, 0)
    assert work(0.2, steps=0) == work(1.5, steps=5) == work(90.0, steps=5, step_s=40.0) == (30.0, 9)

"""Kept processes that are killed before their next epoch: noticed at once, counted out, replaced."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.agent.ranks import survivors
from holdfast.agent.ranks.jobs import RunningJobs
from holdfast.agent.ranks.processes import Watched, stop
from holdfast.agent.ranks.rank_main import RankOrder
from holdfast.agent.ranks.rank_table import RankTable
from holdfast.agent.ranks.run import Run
from holdfast.models.agent import Fence, Start
from tests.agent.site import NOWHERE

pytestmark = [pytest.mark.e2e]

START = Start(
    job="toy",
    epoch=1,
    incarnation="i",
    script="s",
    code_version="0" * 12,
    ranks=(0, 1),
    world_size=2,
    rendezvous=NOWHERE,
)


class Forked:
    """A process as the fork server gives it: reaped elsewhere, its end is seen at a descriptor."""

    def __init__(self) -> None:
        self._process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        self.pid = self._process.pid
        self.sentinel = os.pidfd_open(self.pid)

    @property
    def exitcode(self) -> int:
        return self._process.wait(timeout=60)

    def end(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        os.close(self.sentinel)


@pytest.fixture
def forked() -> Iterator[list[Forked]]:
    """Two processes, one for each rank."""
    processes = [Forked(), Forked()]
    yield processes
    for process in processes:
        process.end()


class Kept:
    """A run whose ranks may be kept, and what is made known of those that died before their next epoch."""

    def __init__(self, forked: list[Forked], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        class Memory:
            root = tmp_path

            def own(self, _job: str) -> Path:
                return tmp_path

        memory: Any = Memory()
        self.run = Run(START, "m0", tmp_path, memory)
        self.run.board = RankTable(tmp_path / "sock", 1, (0, 1), Any)  # type: ignore[arg-type]
        known: list[Any] = list(forked)
        self.run.processes = {rank: Watched(process, rank) for rank, process in enumerate(known)}
        for row in self.run.board.rows.values():
            row.keeps = row.left = True
        monkeypatch.setattr(survivors, "_ask_to_leave", lambda _control: True)
        (tmp_path / "control").mkdir()
        self.lost: list[tuple[Run, int]] = []
        some: Any = SimpleNamespace(observe=lambda _: None)
        metrics: Any = SimpleNamespace(fence_seconds=some)
        self.jobs = RunningJobs(
            forks=some,
            memory=memory,
            supply=some,
            metrics=metrics,
            host="",
            make_run=some,
            events=some,
            on_exit=some,
            on_lost=lambda run, process: self.lost.append((run, process.rank)),
        )
        self.jobs.runs["toy"] = self.run

    async def fence(self, keep_s: float) -> None:
        await self.jobs.fence(Fence(job="toy", epoch=1, incarnation="i", keep_s=keep_s))


@pytest.fixture
def kept(forked: list[Forked], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Make the run in the test's loop."""
    return lambda: Kept(forked, tmp_path, monkeypatch)


async def test_a_kept_rank_that_is_killed_while_it_waits_is_known_at_once(
    kept: Any, forked: list[Forked]
) -> None:
    """And waits no longer, as far as anyone asks; the one that was ended by order is none of them."""
    job: Kept = kept()
    await job.fence(60)
    assert (job.jobs.survivors.waiting("toy"), job.lost) == (2, [])
    os.kill(forked[1].pid, signal.SIGKILL)
    await job.run.processes[1].gone
    assert job.lost == [(job.run, 1)]
    assert job.jobs.survivors.waiting("toy") == 1
    await job.fence(0)
    assert job.lost == [(job.run, 1)]


async def test_a_kept_rank_that_is_killed_at_the_order_to_leave_is_known(
    kept: Any, forked: list[Forked], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not one that ends by another signal: closed connections may make it abort."""
    job: Kept = kept()

    def killed(_control: str) -> bool:
        os.kill(forked[0].pid, signal.SIGKILL)
        os.kill(forked[1].pid, signal.SIGABRT)
        return True

    assert job.run.board is not None
    for row in job.run.board.rows.values():
        row.left = False
    monkeypatch.setattr(survivors, "_ask_to_leave", killed)
    await job.fence(60)
    assert job.lost == [(job.run, 0)]
    assert "was killed by SIGKILL instead of leaving" in job.run.not_kept[0]


async def test_a_rank_that_was_killed_while_it_waited_has_a_new_process_with_a_reason(
    kept: Any, forked: list[Forked], tmp_path: Path
) -> None:
    job: Kept = kept()
    await job.fence(60)
    os.kill(forked[1].pid, signal.SIGKILL)
    await job.run.processes[1].gone
    memory: Any = job.run._memory
    after = Run(START.model_copy(update={"epoch": 2}), "m0", tmp_path, memory)
    after.inherit(job.run)
    orders = {rank: RankOrder(rank, 2, "s", (), "", "", "", {}) for rank in (0, 1)}
    assert after._go_on(orders).keys() == {0}
    assert after.why_new == {1: "it was killed by SIGKILL while it waited for the next epoch"}
    await stop(list(after.processes.values()))

"""Processes of a check are kept for the next one, and no check waits for a dead one."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.agent.diagnostics import warm_checks
from holdfast.agent.diagnostics.check_part import CheckPart
from holdfast.agent.diagnostics.collectives import all_gather, all_to_all
from holdfast.agent.diagnostics.warm_checks import Bench


class Process:
    """One that waits for its next order, takes it, or is gone."""

    def __init__(self, order: str) -> None:
        self.order = Path(order)
        self.exitcode: int | None = None
        self.taken: dict[str, Any] | None = None

    def kill(self) -> None:
        self.exitcode = -9

    def take(self) -> None:
        """Claim the next order as a real one does."""
        while not self.order.exists():
            pass
        claimed = self.order.rename(self.order.with_suffix(".taken"))
        self.taken = json.loads(claimed.read_text())
        claimed.unlink()


class Forks:
    """Counts."""

    def __init__(self) -> None:
        self.forked: list[Process] = []

    def __call__(self, target: Callable[..., None], args: tuple[Any, ...]) -> Process:
        _, part = args
        self.forked.append(Process(part.stay))
        return self.forked[-1]


PART = CheckPart(rank=0, size=2, folder="/nowhere", timeout_s=1.0)


def test_a_process_that_did_well_is_given_the_next_check(monkeypatch: pytest.MonkeyPatch) -> None:
    """One fork for two checks."""
    monkeypatch.setattr(warm_checks, "_REUSE_S", 60.0)
    monkeypatch.setattr(warm_checks, "_CLAIM_S", 60.0)
    forks = Forks()
    bench = Bench(forks)
    process, order = bench.start(all_to_all, PART)
    bench.keep(process, order)
    taker = threading.Thread(target=forks.forked[0].take)
    taker.start()
    again, _ = bench.start(all_gather, PART)
    taker.join()
    assert again is process
    assert len(forks.forked) == 1
    assert forks.forked[0].taken is not None
    assert forks.forked[0].taken["check"] == "all_gather"


def test_one_that_does_not_take_its_order_is_replaced() -> None:
    """The order is taken back, the process killed, a new one forked."""
    forks = Forks()
    bench = Bench(forks)
    process, order = bench.start(all_to_all, PART)
    bench.keep(process, order)
    again, _ = bench.start(all_gather, PART)
    assert again is not process
    assert forks.forked[0].exitcode == -9
    assert not order.exists()


def test_one_that_ended_is_not_asked() -> None:
    """A new one is forked at once."""
    forks = Forks()
    bench = Bench(forks)
    process, order = bench.start(all_to_all, PART)
    forks.forked[0].exitcode = 0
    bench.keep(process, order)
    again, _ = bench.start(all_gather, PART)
    assert again is not process
    assert len(forks.forked) == 2


async def test_processes_of_checks_are_gone_before_ranks_start() -> None:
    """One that waits for another check is killed at once; one that ends has a moment for it."""
    forks = Forks()
    bench = Bench(forks)
    (idle, order), (leaving, _) = bench.start(all_to_all, PART), bench.start(all_gather, PART)
    bench.keep(idle, order)
    bench.leave(leaving)
    asyncio.get_running_loop().call_later(0.05, setattr, leaving, "exitcode", 0)
    await bench.clear()
    assert [process.exitcode for process in forks.forked] == [-9, 0]
    again, _ = bench.start(all_to_all, PART)
    assert again not in (idle, leaving), "none of them is given another check"


async def test_idle_ones_end_beside_what_comes_before_a_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are killed without a wait; ranks wait for what is left of them."""
    forks = Forks()
    bench = Bench(forks)
    idle, order = bench.start(all_to_all, PART)
    bench.keep(idle, order)
    killed: list[float] = []
    monkeypatch.setattr(idle, "kill", lambda: killed.append(0.0))  # its end takes a moment
    bench.end_idle()
    assert killed
    assert bench.start(all_to_all, PART)[0] is not idle
    asyncio.get_running_loop().call_later(0.05, setattr, idle, "exitcode", -9)
    await bench.clear()
    assert idle.exitcode == -9


async def test_one_that_does_not_end_is_killed_and_waited_for_no_longer_than_that(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing of the job waits for a check for ever."""
    monkeypatch.setattr(warm_checks, "LEAVE_S", 0.0)
    monkeypatch.setattr(warm_checks, "GONE_S", 0.05)
    forks = Forks()
    bench = Bench(forks)
    for _ in range(2):
        bench.leave(bench.start(all_gather, PART)[0])
    monkeypatch.setattr(forks.forked[1], "kill", lambda: None)  # stuck in the kernel
    await bench.clear()
    assert [process.exitcode for process in forks.forked] == [-9, None]

"""Ranks that were killed and take long to die: stuck in the kernel, or on a host without a free processor."""

from __future__ import annotations

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from holdfast.agent.ranks import proc, processes
from holdfast.errors import UndyingError


def killed() -> SimpleNamespace:
    return SimpleNamespace(rank=3, pid=77, gone=asyncio.get_running_loop().create_future())


async def test_a_stuck_rank_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_GONE_S", 0.0)
    monkeypatch.setattr(proc, "is_stuck", lambda pid: pid == 77)
    with pytest.raises(UndyingError, match=r"\(3, 77\).* did not die within 0 s of SIGKILL"):
        await processes._until_gone([killed()])  # type: ignore[list-item]


async def test_a_rank_that_waits_for_a_processor_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looked at again and again; it ends at last."""
    one, looks = killed(), []

    def look(pid: int) -> bool:
        looks.append(pid)
        if len(looks) == 5:
            one.gone.set_result(-9)
        return False

    monkeypatch.setattr(processes, "_GONE_S", 0.001)
    monkeypatch.setattr(proc, "is_stuck", look)
    await processes._until_gone([one])
    assert looks == [77] * 5


async def test_nothing_is_waited_for_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_GONE_S", 0.001)
    monkeypatch.setattr(processes, "_STARVED_S", 0.0)
    monkeypatch.setattr(proc, "is_stuck", lambda _: False)
    with pytest.raises(UndyingError, match="did not die"):
        await processes._until_gone([killed()])  # type: ignore[list-item]


def test_a_process_is_stuck_if_one_of_its_threads_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the first one does; one that has ended is not."""
    own, states = os.getpid(), iter([b"S", b"D"])
    assert not proc.is_stuck(own)
    assert not proc.is_stuck(2**22 + 1)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(int).result()
        monkeypatch.setattr(proc, "stat", lambda pid, thread: (b"python", [next(states, b"S")]))
        assert proc.is_stuck(own)

"""Ranks that were killed and take long to die: stuck in the kernel, or on a host without a free processor."""

from __future__ import annotations

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from holdfast.agent.ranks import proc, processes
from holdfast.errors import DyingError, UndyingError


def killed() -> SimpleNamespace:
    return SimpleNamespace(rank=3, pid=77, gone=asyncio.get_running_loop().create_future())


@pytest.mark.parametrize("stuck", [True, False])
async def test_a_rank_that_does_not_die_is_stuck_or_waits_for_a_processor(
    monkeypatch: pytest.MonkeyPatch, stuck: bool
) -> None:
    """The one who asked may ask again where it is not stuck."""
    monkeypatch.setattr(processes, "_GONE_S", 0.0)
    monkeypatch.setattr(proc, "is_stuck", lambda pid: stuck and pid == 77)
    with pytest.raises(UndyingError, match=r"\(3, 77\).* did not die within 0 s of SIGKILL") as raised:
        await processes.until_gone([killed()])  # type: ignore[list-item]
    assert isinstance(raised.value, DyingError) is not stuck


def test_a_process_is_stuck_if_one_of_its_threads_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the first one does; one that has ended is not."""
    own, states = os.getpid(), iter([b"S", b"D"])
    assert not proc.is_stuck(own)
    assert not proc.is_stuck(2**22 + 1)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(int).result()
        monkeypatch.setattr(proc, "stat", lambda pid, thread: (b"python", [next(states, b"S")]))
        assert proc.is_stuck(own)

"""A main thread that is stuck in a call for good, and threads that are only slow."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from holdfast.agent.ranks import blocked
from holdfast.agent.ranks.blocked import BLOCKED_S, ObservedThread


@pytest.mark.parametrize(
    ("seen", "is_blocked"),
    [
        ([(b"S", 7)] * 40, True),
        ([(b"T", 7)] * 40, True),
        ([(b"R", 7)] * 40, False),  # it waits for a processor
        ([(b"D", 7)] * 40, False),  # for a disk
        ([(b"S", ticks) for ticks in range(40)], False),  # it computes, and sleeps between
        ([(b"S", 7)] * 15 + [(b"R", 7)] + [(b"S", 7)] * 15, False),
        ([(b"S", 7)] * 5 + [None] * 35, False),  # it is gone
    ],
)
def test_only_a_thread_that_sleeps_on_is(
    monkeypatch: pytest.MonkeyPatch, seen: list[tuple[bytes, int] | None], is_blocked: bool
) -> None:
    looks = iter(seen)
    monkeypatch.setattr(blocked, "used", lambda _pid: next(looks))
    thread = ObservedThread(1)
    assert any(thread.is_blocked(at * 0.05) for at in range(len(seen))) is is_blocked


def test_an_observer_that_stood_still_proves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """One look after ten seconds is one look."""
    monkeypatch.setattr(blocked, "used", lambda _pid: (b"S", 7))
    thread = ObservedThread(1)
    assert not thread.is_blocked(0.0)
    assert not thread.is_blocked(10 * BLOCKED_S)
    assert not any(thread.is_blocked(10 * BLOCKED_S + 0.002 * look) for look in range(100))


@contextmanager
def running(code: str) -> Iterator[int]:
    process = subprocess.Popen(
        [sys.executable, "-c", f"print(1, flush=True)\n{code}"], stdout=subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        process.stdout.readline()
        yield process.pid
    finally:
        process.kill()
        process.communicate()


def test_a_real_process_is_read() -> None:
    """Its main thread, whatever another thread does."""
    busy = "import threading, time\nthreading.Thread(target=lambda: [0 for _ in iter(int, 1)], daemon=True).start()\n"
    with running(f"{busy}time.sleep(600)") as pid:
        found = blocked.used(pid)
    assert found is not None
    assert found[1] < 1000
    assert blocked.used(0) is None

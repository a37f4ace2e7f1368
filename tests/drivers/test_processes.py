"""The wait for the end of a machine's processes, and the report of those that stay."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psutil
import pytest

from holdfast.drivers import processes
from holdfast.errors import UnavailableError


class Killed:
    """A process that was sent SIGKILL and takes its time."""

    def __init__(self, status: str = psutil.STATUS_RUNNING, *, ours: bool = True) -> None:
        self.pid = 41
        self._status, self._ours = status, ours

    def kill(self) -> None:
        if not self._ours:
            raise psutil.AccessDenied(self.pid)

    def status(self) -> str:
        return self._status


class Host:
    """Virtual time, in which the process is there until ``ends_s``."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, process: Killed, ends_s: float) -> None:
        self.now = 0.0
        monkeypatch.setattr(processes.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(processes, "_find", lambda *_: [process] if self.now < ends_s else [])
        monkeypatch.setattr(processes.psutil, "wait_procs", self._wait)

    def _wait(self, left: Any, timeout: float) -> None:
        self.now += 1.0


def test_a_process_that_only_lacks_a_processor_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """On a host at load 60 the exit of a large process takes longer than the usual ten seconds."""
    host = Host(monkeypatch, Killed(), ends_s=40.0)
    assert processes.kill_all(tmp_path) == 1
    assert host.now == 40.0


@pytest.mark.parametrize(
    ("process", "after_s", "reason"),
    [
        (Killed(psutil.STATUS_DISK_SLEEP), 11, "11 s after SIGKILL: stuck in the kernel"),
        (Killed(ours=False), 11, "owned by another user"),
        (Killed(), 61, "61 s after SIGKILL: the host has no free processor for them. Try again"),
    ],
    ids=["stuck", "of another user", "busy"],
)
def test_what_will_not_die_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, process: Killed, after_s: int, reason: str
) -> None:
    """With what to do about it."""
    host = Host(monkeypatch, process, ends_s=1000.0)
    with pytest.raises(UnavailableError, match=reason):
        processes.kill_all(tmp_path)
    assert host.now == after_s

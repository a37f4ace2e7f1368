"""Reads the lines that :mod:`benchmarks.timed_train` writes, and waits for steps."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

POLL_S = 0.01
ALIVE_S = 1.0
"""Asking whether there is hope costs a request to the gateway, which has the same cores to answer with."""
CALM_STEPS = 10
"""Steps that a job makes before anything is broken."""


class TooLateError(Exception):
    """The awaited condition did not hold in time."""


@dataclass(frozen=True)
class Line:
    """One rank completed one step (0: it began)."""

    rank: int
    pid: int
    step: int
    at: float
    share: float = 1.0
    """Of the ranks that took part in the step."""


class Steps:
    """The step log of one job."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._read = 0
        self._lines: list[Line] = []

    def lines(self) -> list[Line]:
        """All lines so far."""
        if self.path.exists():
            with self.path.open("rb") as file:
                file.seek(self._read)
                new = file.read()
            whole = new[: new.rfind(b"\n") + 1]
            self._read += len(whole)
            self._lines += [Line(**json.loads(text)) for text in whole.splitlines()]
        return self._lines

    def pid(self, rank: int) -> int:
        """Process of ``rank``'s newest incarnation."""
        return next(line.pid for line in reversed(self.lines()) if line.rank == rank)

    def wait_for_calm(self, world_size: int, timeout_s: float, alive: Callable[[], str | None]) -> None:
        """Wait until all ranks began and rank 0 has made some steps."""

        def calm() -> bool:
            lines = self.lines()
            return len({line.rank for line in lines}) == world_size and any(
                line.step >= CALM_STEPS for line in lines
            )

        wait(calm, timeout_s, f"{CALM_STEPS} steps in {self.path}", alive)

    def kill(self, rank: int) -> float:
        """SIGKILL a rank; returns when."""
        pid = self.pid(rank)
        at = time.time()
        os.kill(pid, signal.SIGKILL)
        return at

    def wait_for_new(
        self, since: float, timeout_s: float, alive: Callable[[], str | None], *, beyond: bool
    ) -> float:
        """Wait for the first step that a rank which began after ``since`` completes; returns when it did.

        It may be in a process that began before that, too.

        Args:
            since: when the fault was injected.
            timeout_s: how long to wait.
            alive: None, or why waiting is in vain.
            beyond: only a step counts that no process had completed before.
        """
        found: list[float] = []

        def there() -> bool:
            lines = self.lines()
            again = {line.pid: at for at, line in enumerate(lines) if line.step == 0 and line.at > since}
            old = [line for at, line in enumerate(lines) if at < again.get(line.pid, len(lines))]
            new = [line for at, line in enumerate(lines) if at > again.get(line.pid, len(lines))]
            reached = max((line.step for line in old), default=0) if beyond else 0
            found[:] = [line.at for line in new if line.step > reached]
            return bool(found)

        wait(there, timeout_s, f"a new step in {self.path}", alive)
        return min(found)


def wait(
    condition: Callable[[], bool], timeout_s: float, what: str, alive: Callable[[], str | None] = lambda: None
) -> None:
    """Poll until ``condition``.

    Raises:
        TooLateError: not within ``timeout_s``, or ``alive`` returns why it cannot come.
    """
    until, ask_at = time.monotonic() + timeout_s, 0.0
    while not condition():
        now, why = time.monotonic(), None
        if now >= ask_at:
            ask_at, why = now + ALIVE_S, alive()
        if why or now > until:
            raise TooLateError(f"{what}: {why or f'not within {timeout_s:.0f} s'}")
        time.sleep(POLL_S)

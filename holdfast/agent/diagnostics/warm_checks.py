"""Processes of stop-time checks that stay a moment: the next tier takes them instead of forking its own.

A fork of a process with torch loaded costs more than the check that it runs, and the tiers of a diagnosis follow
each other at once. The next order is a file, claimed by renaming it: either the process has it, or it is taken
back and a new process is forked.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import tempfile
import time
import uuid
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Protocol

from holdfast.agent.diagnostics import check_process
from holdfast.agent.diagnostics.check_part import CheckPart
from holdfast.agent.diagnostics.check_process import STAY_S, FindFn

_REUSE_S = STAY_S / 2
_CLAIM_S = 0.1
_POLL_S = 0.002
LEAVE_S = 1.0
"""A process whose check is over gets so long to end by itself before ranks start: its peer may still read from it."""
GONE_S = 5.0
"""Ranks wait no longer than this for such processes."""

_log = logging.getLogger(__name__)


class Forked(Protocol):
    """The used part of a ``multiprocessing`` process."""

    @property
    def exitcode(self) -> int | None:
        """None while it runs; negative: the signal that ended it."""
        ...

    def kill(self) -> None:
        """SIGKILL."""
        ...


ForkFn = Callable[[Callable[..., None], tuple[Any, ...]], Forked]


class Bench:
    """The processes of one machine that may be given another check."""

    def __init__(self, fork: ForkFn, folder: Path | None = None) -> None:
        """Orders lie in ``folder``, which should be closed to others: a writer of an order has a check run."""
        self._fork = fork
        self._folder = folder or Path(tempfile.gettempdir())
        self._idle: list[tuple[float, Forked, Path]] = []
        self._leaving: list[Forked] = []

    def start(self, find: FindFn, part: CheckPart) -> tuple[Forked, Path]:
        """Run the check ``find`` in a process that stayed or in a new one; return it and the path of its next order.

        With an environment of its own it gets a new one, which ends with it: libraries read theirs once.
        """
        if part.env:
            return self._fork(check_process.run, (find, replace(part, stay=""))), self._folder
        while (idle := self._next_idle()) is not None:
            since, process, order = idle
            fresh = time.monotonic() - since < _REUSE_S and process.exitcode is None
            if fresh and _give(order, find, replace(part, stay=str(order))):
                return process, order
            if process.exitcode is None:
                process.kill()
        order = self._folder / f"holdfast-{uuid.uuid4().hex}.order"
        return self._fork(check_process.run, (find, replace(part, stay=str(order)))), order

    def keep(self, process: Forked, order: Path) -> None:
        """Keep ``process``, whose check succeeded: for a moment it may be given another check."""
        self._idle.append((time.monotonic(), process, order))

    def leave(self, process: Forked) -> None:
        """Note that the check of ``process`` is over, and that it ends."""
        self._leaving = [each for each in (*self._leaving, process) if each.exitcode is None]

    def end_idle(self) -> None:
        """End the processes that wait for another check, without waiting until they are gone."""
        while (idle := self._next_idle()) is not None:
            if idle[1].exitcode is None:
                idle[1].kill()
            self.leave(idle[1])

    async def clear(self) -> None:
        """End the processes whose check is over, and wait until they are gone: each may hold memory of a GPU.

        A GPU in exclusive mode takes no rank beside them.
        """
        self.end_idle()
        over, self._leaving = self._leaving, []
        began, killed = time.monotonic(), False
        while left := [process for process in over if process.exitcode is None]:
            waited_s = time.monotonic() - began
            if waited_s > LEAVE_S and not killed:
                killed = True
                for process in left:
                    process.kill()
            if waited_s > GONE_S:
                _log.warning("%d processes of checks are still there after %.0f s", len(left), GONE_S)
                return
            await asyncio.sleep(_POLL_S)

    def _next_idle(self) -> tuple[float, Forked, Path] | None:
        """Return the process that stayed last; of several threads each gets another one."""
        try:
            return self._idle.pop()
        except IndexError:
            return None


def _give(order: Path, find: FindFn, part: CheckPart) -> bool:
    """Return whether the process took the order."""
    new = order.with_suffix(".new")
    new.write_text(json.dumps({"check": find.__name__, "part": asdict(part)}))
    os.replace(new, order)
    deadline = time.monotonic() + _CLAIM_S
    while time.monotonic() < deadline:
        if not order.exists():
            return True
        time.sleep(_POLL_S)
    try:
        order.unlink()
    except FileNotFoundError:
        return True
    return False

"""Processes of stop-time checks that stay a moment: the next tier takes them instead of forking its own.

A fork of a process with torch loaded costs more than the check that it runs, and the tiers of a diagnosis follow
each other at once. The next order is a file, claimed by renaming it: either the process has it, or it is taken
back and a new process is forked.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
import uuid
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Protocol

from holdfast.agent.diagnostics.collectives import STAY_S, Part

_REUSE_S = STAY_S / 2
_CLAIM_S = 0.1
_POLL_S = 0.002


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

    def start(self, target: Callable[[Part], None], part: Part) -> tuple[Forked, Path]:
        """Run ``target(part)`` in a process that stayed or in a new one; return it and the path of its next order.

        With an environment of its own it gets a new one, which ends with it: libraries read theirs once.
        """
        if part.env:
            return self._fork(target, (replace(part, stay=""),)), self._folder
        while self._idle:
            since, process, order = self._idle.pop()
            fresh = time.monotonic() - since < _REUSE_S and process.exitcode is None
            if fresh and _give(order, target, replace(part, stay=str(order))):
                return process, order
            if process.exitcode is None:
                process.kill()
        order = self._folder / f"holdfast-{uuid.uuid4().hex}.order"
        return self._fork(target, (replace(part, stay=str(order)),)), order

    def keep(self, process: Forked, order: Path) -> None:
        """Keep ``process``, whose check succeeded: for a moment it may be given another check."""
        self._idle.append((time.monotonic(), process, order))


def _give(order: Path, target: Callable[[Part], None], part: Part) -> bool:
    """Return whether the process took the order."""
    new = order.with_suffix(".new")
    new.write_text(json.dumps({"check": target.__name__, "part": asdict(part)}))
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

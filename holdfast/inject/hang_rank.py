"""A rank process stops, as one stuck in a driver call; all others wait for it."""

from __future__ import annotations

import os
import signal

from holdfast.inject.target import Target


def strike(target: Target, rank: int | None) -> int:
    """Stop the rank's process (SIGSTOP)."""
    chosen, pid = target.rank(rank)
    os.kill(pid, signal.SIGSTOP)
    return chosen

"""A rank process dies without a message, as from the kernel's out-of-memory killer."""

from __future__ import annotations

import os
import signal

from holdfast.inject.target import Target


def strike(target: Target, rank: int | None) -> int:
    """Kill the rank's process (SIGKILL)."""
    chosen, pid = target.rank(rank)
    os.kill(pid, signal.SIGKILL)
    return chosen

"""A rank process dies without a word, as from the kernel's out-of-memory killer."""

from __future__ import annotations

import os
import signal

from holdfast.inject.target import Target


def strike(target: Target, rank: int | None) -> int:
    """SIGKILL the rank's process."""
    chosen, pid = target.rank(rank)
    os.kill(pid, signal.SIGKILL)
    return chosen

"""A replica of a role dies without a message; the ranks beside it should not notice."""

from __future__ import annotations

import os
import signal

from holdfast.errors import RefusedError
from holdfast.inject.target import Target


def strike(target: Target, _rank: int | None) -> None:
    """Kill the machine's first replica (SIGKILL).

    Raises:
        RefusedError: no replica of a role runs on the machine.
    """
    replicas = target.replicas()
    if not replicas:
        raise RefusedError(f"no replica of a role runs on machine {target.machine}")
    os.kill(replicas[0].pid, signal.SIGKILL)

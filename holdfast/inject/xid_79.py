"""The kernel reports Xid 79: a GPU has fallen off the bus."""

from __future__ import annotations

import os
import time

from holdfast.errors import RefusedError
from holdfast.inject.target import Target

LINE = "NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."


def strike(target: Target, rank: int | None) -> None:
    """Append the driver's line to the kernel log that the machine's agent follows.

    Raises:
        RefusedError: the agents follow a log that is not the machine's own.
    """
    if shared := target.settings.kernel_log:
        raise RefusedError(
            f"agents follow {shared}, which is not this machine's own log: unset HOLDFAST_KERNEL_LOG to inject."
        )
    stamped = f"[{time.monotonic():12.6f}] {LINE}\n".encode()
    log = os.open(target.folder / "kernel.log", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(log, stamped)
    finally:
        os.close(log)

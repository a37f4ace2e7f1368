"""The lowest priority of the scheduler, for what must not disturb the training beside it."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator

LOWEST = 19
"""Of nice values. Not ``SCHED_IDLE``: on a host whose cores are all used it would never get one."""


@contextlib.contextmanager
def lowest_priority() -> Iterator[None]:
    """Run this process at the lowest priority for a while, if it may be raised again; all its threads are.

    Lowering it takes no privilege, raising it does (``CAP_SYS_NICE`` or ``RLIMIT_NICE``): without, nothing is changed,
    as a rank must not train at that priority.
    """
    usual = os.getpriority(os.PRIO_PROCESS, 0)
    if not _may_be_raised(usual):
        yield
        return
    os.setpriority(os.PRIO_PROCESS, 0, LOWEST)
    try:
        yield
    finally:
        # On Linux the value is a thread's, and those that were begun meanwhile have inherited the lowest.
        for thread in os.listdir("/proc/self/task"):
            with contextlib.suppress(ProcessLookupError):  # it ended
                os.setpriority(os.PRIO_PROCESS, int(thread), usual)


def _may_be_raised(usual: int) -> bool:
    """Try it on a thread that ends right after: neither capabilities nor limits say it inside of every container."""
    raised: list[bool] = []

    def trial() -> None:
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), LOWEST)
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), usual)
            raised.append(True)

    thread = threading.Thread(target=trial, name="priority")
    thread.start()
    thread.join()
    return bool(raised)

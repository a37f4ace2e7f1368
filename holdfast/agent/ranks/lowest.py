"""The lowest priority of the scheduler, for what must not disturb the training beside it.

Where Linux groups processes by session (``sched_autogroup_enabled``; not in a control group with a share of its own),
a nice value counts within a session only, and the session has one, too: else a spare process took as much from the
ranks of another session as they have.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path

from tenacity import retry, retry_if_exception_type, stop_after_delay, wait_random

LOWEST = 19
"""Of nice values. Not ``SCHED_IDLE``: on a host whose cores are all used it would never get one."""
_SESSION = Path("/proc/self/autogroup")


@contextlib.contextmanager
def lowest_priority() -> Iterator[None]:
    """Run this process at the lowest priority for a while, as far as it may be raised again; all its threads are.

    Lowering takes no privilege. Raising a process does (``CAP_SYS_NICE`` or ``RLIMIT_NICE``): without, its own is not
    changed, as a rank must not train at that priority. Raising a session to the usual one takes none.

    Raises:
        OSError: the session's could not be raised again.
    """
    usual = os.getpriority(os.PRIO_PROCESS, 0)
    alone = _may_be_raised(usual)
    if alone:
        os.setpriority(os.PRIO_PROCESS, 0, LOWEST)
    grouped = _lower_session()
    try:
        yield
    finally:
        if grouped:
            _raise_session()
        if alone:
            _raise_threads(usual)


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


def _raise_threads(usual: int) -> None:
    """Raise all threads: on Linux the value is a thread's, and those begun meanwhile have inherited the lowest."""
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(ProcessLookupError):  # it ended
            os.setpriority(os.PRIO_PROCESS, int(thread), usual)


def _lower_session() -> bool:
    """Lower the session's priority, if this process leads it; return whether that was done."""
    if os.getsid(0) != os.getpid():  # others run in it
        return False
    with contextlib.suppress(OSError):  # no such groups, or another one set its own within the last 0.1 s
        _SESSION.write_text(str(LOWEST))
        return True
    return False


@retry(
    retry=retry_if_exception_type(BlockingIOError),
    stop=stop_after_delay(30.0),
    wait=wait_random(0.05, 0.15),
    reraise=True,
)
def _raise_session() -> None:
    """Raise it again. Without privileges one process of the host may set one each 0.1 s."""
    _SESSION.write_text("0")

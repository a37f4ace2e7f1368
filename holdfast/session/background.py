"""The thread of a rank that finishes saves: in order, and without delaying the process's end."""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field

_log = logging.getLogger(__name__)

AT_EXIT_S = 10.0
"""How long a process that ends waits for its last save, which other ranks may never take part in."""

SHORT_S = 0.01
"""A wait of at most so long, in seconds, is slept through, also when the process ends meanwhile."""

Work = Callable[[], None]


@dataclass
class _Shared:
    """The state of the thread: not the owner, which may be collected."""

    waiting: queue.SimpleQueue[Work | None] = field(default_factory=queue.SimpleQueue)
    pending: int = 0
    idle: threading.Condition = field(default_factory=threading.Condition)
    ended: threading.Event = field(default_factory=threading.Event)


class Background:
    """Runs what is submitted, one after the other. An exception there is logged, and goes no further."""

    def __init__(self) -> None:
        self._shared = _Shared()
        self._thread: threading.Thread | None = None
        weakref.finalize(self, self._shared.waiting.put, None).atexit = False

    def submit(self, work: Work) -> None:
        """Have ``work`` run by the thread."""
        with self._shared.idle:
            self._shared.pending += 1
        self._shared.waiting.put(work)
        if self._thread is None:
            self._thread = threading.Thread(
                target=_run, args=(self._shared,), name="holdfast-save", daemon=True
            )
            self._thread.start()
            _finish_at_exit(self)

    @property
    def busy(self) -> bool:
        """Whether something is not done yet."""
        return self._shared.pending > 0

    def ended(self, within_s: float = 0.0) -> bool:
        """Return whether the process ends: give up. Wait for that at most ``within_s``."""
        if within_s > SHORT_S:
            return self._shared.ended.wait(within_s)
        if within_s:
            time.sleep(within_s)  # which takes a fraction of the processor time of an event's wait
        return self._shared.ended.is_set()

    def wait(self, timeout_s: float) -> bool:
        """Wait until all is done, at most so long; return whether it is."""
        if not self.busy:
            return True
        with self._shared.idle:
            return self._shared.idle.wait_for(lambda: self._shared.pending == 0, timeout_s)

    def end(self, timeout_s: float) -> bool:
        """Have the thread give up what is under way; return whether it has ended within ``timeout_s``."""
        self._shared.ended.set()
        self._shared.waiting.put(None)
        if self._thread is not None:
            self._thread.join(timeout_s)
        return self._thread is None or not self._thread.is_alive()

    def finish(self, timeout_s: float = AT_EXIT_S) -> None:
        """Wait a bounded time for what is under way, then have the thread end."""
        deadline = time.monotonic() + timeout_s
        self.wait(timeout_s)
        self._shared.ended.set()
        self._shared.waiting.put(None)
        if self._thread is not None:
            self._thread.join(max(1.0, deadline - time.monotonic()))


def _run(shared: _Shared) -> None:
    _yield_to_training()
    while (work := shared.waiting.get()) is not None:
        try:
            work()
        except Exception:
            _log.exception("a save could not be finished")
        del work
        with shared.idle:
            shared.pending -= 1
            shared.idle.notify_all()


def _yield_to_training() -> None:
    """Never take the processor from a computing thread when work comes; its turn comes as soon as any other's.

    Otherwise Linux runs a thread that slept at once, in the place of the one that woke it.
    """
    with contextlib.suppress(OSError, AttributeError):
        os.sched_setscheduler(threading.get_native_id(), os.SCHED_BATCH, os.sched_param(0))


def _finish_at_exit(background: Background) -> None:
    """Finish as ``concurrent.futures`` does: ``atexit`` is not run in processes that ``multiprocessing`` forked."""
    known = weakref.ref(background)

    def finish() -> None:
        if (alive := known()) is not None:
            alive.finish()

    threading._register_atexit(finish)  # type: ignore[attr-defined]

"""The main thread while it is in the training function, and the way to get it out of there."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType

SIGNAL = signal.SIGRTMIN + 12
_AGAIN_S = 0.02


class EpochOver(BaseException):
    """Raised in the training function when its epoch is over. Not an ``Exception``: scripts catch those and go on."""


class MainThread:
    """Made on the main thread."""

    def __init__(self) -> None:
        """Take the signal.

        Raises:
            ValueError: this is another thread.
        """
        self._inside: int | None = None
        self._out = threading.Event()
        self._driving = threading.Lock()
        signal.signal(SIGNAL, self._interrupt)

    def enter(self, epoch: int) -> None:
        """Be in the training function from now on: only there this thread is interrupted."""
        with self._driving:  # what breaks off an older epoch's groups would break off the new one's
            self._out.clear()
        self._inside = epoch

    def leave(self) -> None:
        """Be out of it."""
        self._inside = None
        self._out.set()

    def drive_out(self, epoch: int, break_off: Callable[[], None]) -> None:
        """Return when this thread is not in the training function of ``epoch``. Called in another thread.

        It may be in a collective, which ends when its group is broken off; or in Python code or a system call, where it
        is interrupted; or on its way from one to the other. From a call that does neither it never returns, and the
        agent ends the process.
        """
        with self._driving:
            while self._inside == epoch:
                break_off()
                if self._inside == epoch:
                    signal.pthread_kill(threading.main_thread().ident or 0, SIGNAL)
                self._out.wait(_AGAIN_S)

    def _interrupt(self, _signal: int, _frame: FrameType | None) -> None:
        if self._inside is not None:
            raise EpochOver

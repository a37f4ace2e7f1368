"""What a rank waits for at a step boundary: the copy on its peer, and being let go."""

from __future__ import annotations

import time
from collections.abc import Callable

from holdfast.agent.wire import NO_HOLD, Control
from holdfast.session.report import Reporter

REPLICATION_S = 1.0
"""Longest wait for the peer's copy; training must not depend on it."""
LATE_S = 0.05
"""Longest wait while the peer is already behind."""


class Boundary:
    """Reads the control page between steps."""

    def __init__(self, control: Control, reporter: Reporter) -> None:
        self._control = control
        self._reporter = reporter
        self.late_copies = 0
        """Steps that went on without the peer's copy."""
        self._late = False

    def wait_for_copy(self, step: int, announce: Callable[[], bool]) -> bool:
        """Wait, bounded, until the peer has ``step``; ``announce`` is repeated until the agent took it."""
        told = announce()
        deadline = time.monotonic() + (LATE_S if self._late else REPLICATION_S)
        pause = 0.0001
        while self._control.replicated_step < step:
            if time.monotonic() > deadline:
                self._late = True
                self.late_copies += 1
                return False
            time.sleep(pause)
            pause = min(pause * 1.5, 0.002)
            told = told or announce()
        self._late = False
        return True

    def hold(self, step: int) -> None:
        """Wait while the agent holds this rank at or before ``step``."""
        if not self._must_hold(step):
            return
        self._reporter.send("held", step=step)
        pause, said = 0.002, time.monotonic()
        while self._must_hold(step):
            time.sleep(pause)
            pause = min(pause * 1.2, 0.02)
            if time.monotonic() - said > 0.5:  # a datagram may be lost
                self._reporter.send("held", step=step)
                said = time.monotonic()
        self._reporter.send("released")

    def _must_hold(self, step: int) -> bool:
        at = self._control.hold_at_step
        return at != NO_HOLD and step >= at

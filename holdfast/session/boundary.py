"""Waits of a rank at a step boundary: for the copy on its peer, and for its release by the agent."""

from __future__ import annotations

import threading
import time
from pathlib import Path

from holdfast.agent.wire import NO_HOLD, Control
from holdfast.session.rank_reporter import RankReporter
from holdfast.storage.checkpoints.save.buffers import Saved

REPLICATION_S = 1.0
"""After so long a save counts without the peer's copy; training must not depend on it."""
LATE_S = 0.5
"""The same while the peer is already behind."""

REMIND_S = 0.5


class Boundary:
    """Reads the control page between steps."""

    def __init__(self, control: Control, reporter: RankReporter, *, has_peer: bool) -> None:
        self._control = control
        self._reporter = reporter
        self._has_peer = has_peer
        self.late_copies = 0
        """Saves that count without the peer's copy."""
        self.copied = True
        """Whether the peer has the save that was waited for last, or there is none."""
        self._late = False
        self._lock = threading.Lock()
        self._reported = 0
        """The step that was reported last."""
        self._waiting: tuple[int, str, int] | None = None
        self._delivered = False
        self._unsent_common: tuple[int, str, int] | None = None
        self._since = 0.0
        self._kept: tuple[int, str] | None = None
        self._reminded = 0.0

    @property
    def longest_s(self) -> float:
        """Longest wait for a copy, in seconds."""
        return LATE_S if self._late else REPLICATION_S

    def saved(self, step: int, path: Path, nbytes: int) -> None:
        """Report a complete shard to the agent. Called from the thread that saves.

        Of a step that is saved a second time (the last one of a job) the peer may have the first save, which other
        ranks do not share: the agent is to send it again.
        """
        with self._lock:
            if step == self._reported and self._control.replicated_step >= step:
                self._control.replicated_step = step - 1
            self._reported = step
            self._waiting = (step, str(path), nbytes)
            self._since = time.monotonic()
            self._delivered = self._report_saved()

    def has_copy(self) -> bool:
        """Return whether the peer has the newest shard, or is too late. Reports again if the agent was not there."""
        with self._lock:
            self._report_common()
            if self._waiting is None:
                return True
            self._delivered = self._delivered or self._report_saved()
            self.copied = not self._has_peer or self._control.replicated_step >= self._waiting[0]
            if self.copied:
                self._late = False
            elif time.monotonic() - self._since > self.longest_s:
                self._late = True
                self.late_copies += 1
            else:
                return False
            self._waiting = None
            return True

    def common(self, step: int, path: Path, *, since: int) -> None:
        """Report to the agent that all ranks have the save: it may copy it on. Called from the thread that saves.

        ``since``: the step before it that all ranks have, or began with.
        """
        with self._lock:
            self._kept = step, str(path)
            self._unsent_common = step, str(path), since
            self._since = time.monotonic()
            self._report_common()

    def kept(self, step: int, path: Path) -> None:
        """Have the agent ensure that the peer has the shard that this rank resumes from."""
        with self._lock:
            self._kept = step, str(path)
        self.remind()

    def remind(self) -> None:
        """Report again to the agent which shard the peer lacks; now and then."""
        with self._lock:
            now = time.monotonic()
            if self._kept is None or now - self._reminded < REMIND_S:
                return
            self._reminded = now
            step, path = self._kept
            self._reporter.send("kept", step=step, path=path)

    def is_on_peer(self, saved: Saved | None) -> bool:
        """Return whether the peer has what this rank saved or resumed from last, or there is no such thing."""
        return saved is None or not self._has_peer or self._control.replicated_step >= saved[1]

    def must_hold(self, step: int) -> bool:
        """Return whether the agent holds this rank at or before ``step``."""
        at = self._control.hold_at_step
        return at != NO_HOLD and step >= at

    def hold(self, step: int) -> None:
        """Wait while the agent holds this rank at or before ``step``."""
        if not self.must_hold(step):
            return
        self._reporter.send("held", step=step)
        pause, sent_at = 0.002, time.monotonic()
        while self.must_hold(step):
            time.sleep(pause)
            pause = min(pause * 1.2, 0.02)
            if time.monotonic() - sent_at > 0.5:  # a datagram may be lost
                self._reporter.send("held", step=step)
                sent_at = time.monotonic()
        self._reporter.send("released")

    def _report_saved(self) -> bool:
        assert self._waiting is not None
        step, path, nbytes = self._waiting
        return self._reporter.send("saved", step=step, path=path, nbytes=nbytes)

    def _report_common(self) -> None:
        if self._unsent_common is not None:
            step, path, since = self._unsent_common
            if self._reporter.send("common", step=step, path=path, since=since):
                self._unsent_common = None

"""Agreement of all ranks on the call at which they make a new plan, while no other call waits for news."""

from __future__ import annotations

import threading

from holdfast.session.agreement import Result


class Agenda:
    """A need for a plan becomes a proposal, one or two calls ahead; the next exchange accepts or rejects it.

    A rank rejects when it is past that call already (it learned of it late, or its save took long); then there is
    another proposal. A rank that did not reject stops at the call until all exchanges before it are over, so that all
    ranks know the same: :meth:`due`, then :meth:`take_up`.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls = 0
        self._at: int | None = None
        self._rejects = False
        self._agreed = False

    def call(self) -> int:
        """Count a call; return its number."""
        with self._lock:
            self._calls += 1
            return self._calls

    @property
    def rejects(self) -> bool:
        """Whether this rank's next vote rejects the proposal."""
        return self._rejects

    @property
    def pending(self) -> bool:
        """Whether a plan is to be made: saves by the old one are useless."""
        return self._at is not None

    def take(self, result: Result) -> None:
        """Record the votes of all ranks; in the thread that saves, in order."""
        with self._lock:
            if self._at is not None and not self._agreed:
                self._agreed = not result.rejects
                if result.rejects:
                    self._at, self._rejects = None, False
            elif self._at is None and result.needs_plan:
                self._at, self._agreed = result.calls + 2, False
                self._rejects = self._calls >= self._at

    def due(self, number: int) -> bool:
        """Return whether all ranks may be about to plan at this call: wait for all exchanges, then :meth:`take_up`."""
        with self._lock:
            return self._at == number and not self._rejects

    def take_up(self, number: int) -> bool:
        """Return whether all ranks plan now; no exchange is under way."""
        with self._lock:
            now = self._at == number and self._agreed
            if now:
                self._at, self._agreed = None, False
            return now

    def forget(self) -> None:
        """Forget proposals: there are no more exchanges."""
        with self._lock:
            self._at, self._agreed, self._rejects = None, False, False

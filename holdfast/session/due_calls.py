"""Agreement of all ranks on the calls of ``checkpoint`` at which they save, and vote on what became of it."""

from __future__ import annotations

import threading

from holdfast.session.agreement import Result

MOST = 64
"""Longest distance of the next save from where the fastest rank is, in calls."""
_ENOUGH = 4
"""Saves in a row that all ranks have, after which a shorter distance is tried."""


class DueCalls:
    """Which call is the next to save: it follows from the outcome of the last vote, which is the same on all ranks.

    A rank may not begin a save before it knows what became of the last one, since it might overwrite the save that all
    ranks have. Ranks that hear of it on two sides of a call would save at different calls, and have nothing in common:
    on busy processors that happens most of the time. So the next save is due some calls after the newest one that the
    fastest rank has decided on: one, and twice as many each time that a rank left a due call out. It is further away
    where a rank wants that, by what saves cost (:class:`~holdfast.session.save_interval.SaveInterval`).

    Such a rank votes on the call that it missed when it hears of it (:meth:`missed`). On calls that are not due no rank
    votes, unless it must save there. Votes on different calls may so meet: nothing is saved by them, and no rank
    votes any more on calls up to the newest of these, so that afterwards all vote on the same calls again.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._next = self._distance = 1
        self._decided = 0
        self._steps: dict[int, int] = {}
        """Step by call, of those since the last outcome."""
        self._under_way = self._spent = 0
        self._in_a_row = 0
        self._rests = False

    @property
    def decided(self) -> int:
        """Number of calls that this rank has decided on."""
        return self._decided

    @property
    def unknown(self) -> bool:
        """Whether the outcome of a vote is not known yet."""
        return self._under_way > 0

    @property
    def rests(self) -> bool:
        """Whether calls are left out for what saves cost: none of them is missed."""
        return self._rests

    def decide(self, number: int, step: int, *, forced: bool = False) -> bool:
        """Return whether this rank votes on this call, and may save before; ``forced``: it does in any case."""
        with self._lock:
            self._decided = number
            self._steps[number] = step
            due = number > self._spent and (forced or (number == self._next and not self._under_way))
            if due:
                self._next = number
                self._under_way += 1
            return due

    def take(self, number: int, result: Result) -> None:
        """Record the outcome of a vote; in the thread that saves, in order."""
        with self._lock:
            self._under_way = max(0, self._under_way - 1)
            if result.skipped and result.same_call:
                self._distance, self._in_a_row = min(2 * self._distance, MOST), 0
            elif result.common:
                self._in_a_row += 1
                if self._in_a_row == _ENOUGH:
                    self._distance, self._in_a_row = max(1, self._distance // 2), 0
            # A new plan is proposed by one vote and accepted by the next, which is to be soon.
            wanted = self._distance if result.skipped else max(self._distance, result.distance)
            distance = 1 if result.needs_plan else wanted
            self._rests = distance > self._distance
            self._spent = max(self._spent, number, result.call)
            self._next = max(self._spent, result.calls) + distance
            self._steps = {call: step for call, step in self._steps.items() if call >= self._next}

    def missed(self) -> tuple[int, int] | None:
        """Return the call, with its step, that was due and is past: the others' votes on it wait for this rank's."""
        with self._lock:
            if self._under_way or self._next not in self._steps:
                return None
            self._under_way += 1
            return self._next, self._steps[self._next]

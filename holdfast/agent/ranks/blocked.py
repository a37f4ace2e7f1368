"""Main threads that a call blocks for good, seen from outside.

Such a call is a wait for a peer inside Gloo. When a connection is lost in the middle of a message, Gloo (of torch 2.13)
reports that to all that wait for the connection, but not to a sender whose message the kernel took in part only
(``Pair::signalException`` passes over the unbound buffers of ``tx_``): it waits for the group's timeout, half an hour.
"""

from __future__ import annotations

from holdfast.agent.ranks import proc

BLOCKED_S = 1.0
"""A main thread that slept for so long without a break, though signals came, is in a call that nothing ends."""
_EVERY_S = 0.05
_ASLEEP = (b"S", b"T", b"t")


class ObservedThread:
    """That of one process. Looks are counted, not time: a host or an agent that stood still proves nothing."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._seen: tuple[bytes, int] | None = None
        self._looks = 0
        self._next = 0.0

    def is_blocked(self, now: float) -> bool:
        """Look again, if it is time to; ``now``: seconds by a clock that is never set."""
        if now >= self._next:
            self._next = now + _EVERY_S
            seen = used(self._pid)
            same = seen is not None and seen == self._seen and seen[0] in _ASLEEP
            self._seen, self._looks = seen, self._looks + 1 if same else 0
        return self._looks * _EVERY_S >= BLOCKED_S


def used(pid: int) -> tuple[bytes, int] | None:
    """Return state and processor time (clock ticks) of a process's main thread; None: there is no such process."""
    _, fields = proc.stat(pid, thread=pid)
    return (fields[0], int(fields[11]) + int(fields[12])) if fields else None

"""Connections whose other side has not shown a secret yet: how many there may be, and for how long.

Any client that reaches a port can open connections and send nothing, or half of a request. So each stranger has a
deadline, and where there are too many, of one address or of all, the one that has waited longest gives way to the new
one. A client that knows the secret shows it within milliseconds and is a stranger no more: one of us gets in however
many others wait.
"""

from __future__ import annotations

import resource
import threading
from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import dataclass

MOST_OF_ONE = 1024
"""Most strangers of one address: agents behind one (a proxy, a fleet on one host) may all connect at once. One that
has to give way connects again."""
MOST = 4096
_SHARE_OF_FILES = 4


@dataclass(frozen=True)
class _Stranger:
    peer: str
    until: float
    drop: Callable[[], None]


class Strangers:
    """The strangers of one port, oldest first. Any thread may use it; ``drop`` is called outside its lock."""

    def __init__(self, patience_s: float, most_of_one: int = MOST_OF_ONE, most: int | None = None) -> None:
        self.patience_s = patience_s
        self._most_of_one = most_of_one
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._most = most or max(1, min(MOST, files // _SHARE_OF_FILES))
        self._waiting: dict[Hashable, _Stranger] = {}
        self._of: Counter[str] = Counter()
        self._lock = threading.Lock()
        self.dropped = 0
        """Number of those that had to give way, or were too slow."""

    def __len__(self) -> int:
        return len(self._waiting)

    def came(self, who: Hashable, peer: str, now: float, drop: Callable[[], None]) -> None:
        """Add ``who``, which connected from ``peer``; ``drop`` ends that connection, whatever it is doing."""
        with self._lock:
            give_way = self._too_many(peer)
            self._waiting[who] = _Stranger(peer, now + self.patience_s, drop)
            self._of[peer] += 1
        self._drop(give_way)

    def left(self, who: Hashable) -> None:
        """Remove ``who``: it is no stranger any more, or gone. Harmless if it was none."""
        with self._lock:
            self._forget(who)

    def sweep(self, now: float) -> float | None:
        """Drop those whose deadline has passed; return the seconds until the next deadline, None: none waits."""
        with self._lock:
            late = [who for who, stranger in self._waiting.items() if stranger.until <= now]
            gone = [stranger for who in late if (stranger := self._forget(who))]
            first = next(iter(self._waiting.values()), None)
        self._drop(gone)
        return None if first is None else max(0.0, first.until - now)

    def _too_many(self, peer: str) -> list[_Stranger]:
        """Make room for one more."""
        if self._of[peer] >= self._most_of_one:
            oldest = next(who for who, stranger in self._waiting.items() if stranger.peer == peer)
        elif len(self._waiting) >= self._most:
            oldest = next(iter(self._waiting))
        else:
            return []
        gone = self._forget(oldest)
        return [gone] if gone else []

    def _forget(self, who: Hashable) -> _Stranger | None:
        stranger = self._waiting.pop(who, None)
        if stranger is not None:
            self._of[stranger.peer] -= 1
            if not self._of[stranger.peer]:
                del self._of[stranger.peer]
        return stranger

    def _drop(self, strangers: list[_Stranger]) -> None:
        self.dropped += len(strangers)
        for stranger in strangers:
            stranger.drop()

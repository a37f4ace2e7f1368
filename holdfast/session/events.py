"""Clocks of the parts of a step: the host's, and a GPU's own for work that is only handed to it.

A kernel runs after the line that launched it: on the host's clock its time falls to the part that first waits for the
GPU. So with CUDA two events are recorded around a part and read a step later, when the GPU has passed them: nothing
waits for them.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

_STEPS = 4
"""Of which events may wait to be passed; with more the GPU is far behind, and the oldest is dropped."""
_MOST = 256
"""Timed parts of one step."""


class Event(Protocol):
    """The used part of ``torch.cuda.Event(enable_timing=True)``."""

    def record(self) -> None:
        """Record the moment at which the GPU comes here."""
        ...

    def query(self) -> bool:
        """Return whether the GPU has passed it."""
        ...

    def elapsed_time(self, end_event: Any) -> float:
        """Return milliseconds until ``end_event``, both passed."""
        ...


def cuda_event() -> Event | None:
    """Return an event of the current GPU; None: this process uses none, or now records a graph. Initialises nothing."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized() or torch.cuda.is_current_stream_capturing():
        return None
    event: Event = torch.cuda.Event(enable_timing=True)
    return event


@dataclass
class _Step:
    """Events of one step."""

    parts: list[tuple[str, Event, Event]] = field(default_factory=list)

    def passed(self) -> bool:
        # Both: they may be in two streams.
        return all(began.query() and end.query() for _, began, end in self.parts)

    def seconds(self) -> dict[str, float]:
        found: dict[str, float] = {}
        for name, began, ended in self.parts:
            found[name] = found.get(name, 0.0) + began.elapsed_time(ended) / 1000.0
        return found


class GpuTimes:
    """Events of the newest steps."""

    def __init__(self, make: Callable[[], Event | None] = cuda_event) -> None:
        self._make = make
        self._now = _Step()
        self._waiting: deque[_Step] = deque(maxlen=_STEPS)
        self._failed = False

    def begin(self) -> Event | None:
        """Begin a part; return None when the host's clock is to be used."""
        if self._failed or len(self._now.parts) >= _MOST:
            return None
        return self._recorded()

    def end(self, name: str, began: Event) -> bool:
        """End a part; return False when its end could not be recorded."""
        ended = self._recorded()
        if ended is None:
            return False
        self._now.parts.append((name, began, ended))
        return True

    def take(self) -> dict[str, float]:
        """End a step; return seconds of the newest earlier one that the GPU is through with; empty: none is yet."""
        found: dict[str, float] = {}
        try:
            while self._waiting and self._waiting[0].passed():
                found = self._waiting.popleft().seconds()
        except RuntimeError:  # a GPU that is lost: training gets the error from its own calls
            self._fail()
        if self._now.parts:
            self._waiting.append(self._now)
            self._now = _Step()
        return found

    def _recorded(self) -> Event | None:
        try:
            event = self._make()
            if event is not None:
                event.record()
        except RuntimeError:
            self._fail()
            return None
        return event

    def _fail(self) -> None:
        """Use the host's clock from now on."""
        self._failed, self._now = True, _Step()
        self._waiting.clear()

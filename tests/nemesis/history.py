"""The events of a run, in order; two runs of one seed have the same."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Event:
    """One thing that happened."""

    at: float
    kind: str
    what: dict[str, Any]

    def __str__(self) -> str:
        details = " ".join(f"{name}={value}" for name, value in self.what.items())
        return f"{self.at:8.3f}  {self.kind:<12} {details}"


@dataclass
class History:
    """All of a run."""

    events: list[Event] = field(default_factory=list)

    def note(self, at: float, kind: str, **what: Any) -> None:
        """Write it down."""
        self.events.append(Event(at, kind, what))

    def of(self, *kinds: str) -> list[Event]:
        """Those of some kinds."""
        return [event for event in self.events if event.kind in kinds]

    @property
    def digest(self) -> str:
        """A short hash, different for different histories."""
        return hashlib.sha256("\n".join(map(str, self.events)).encode()).hexdigest()[:16]

"""Interfaces of detectors, and of checks, the simpler part that most detectors are made of."""

from __future__ import annotations

from typing import Any, Protocol

from pydantic import Field

from holdfast.models.alert import Alert, AlertKind, Finding
from holdfast.models.base import Frozen


class Detector(Protocol):
    """One way to look at one part of the machine. Implementations never raise for a missing device."""

    name: str
    interval_s: float
    blocking: bool
    """Calls may block on a device: they run in a thread of their own."""

    def poll(self) -> list[Alert]:
        """Return the faults since the last call; called every ``interval_s`` seconds."""
        ...

    def inspect(self) -> list[Finding]:
        """Return the current state, read afresh; good results included. No findings: nothing here to look at."""
        ...


class Sign(Frozen):
    """One thing that was inspected, good or bad."""

    kind: AlertKind
    ok: bool
    detail: str
    device: str = ""
    value: float | None = None
    limit: float | None = None
    evidence: dict[str, Any] = Field(default_factory=dict)
    """More evidence of the kind."""
    misses: int = 1
    """Fires at so many bad looks in a row; 1: at once."""
    sure: bool = False
    """Proves by itself that the machine is at fault."""

    @property
    def key(self) -> str:
        """Key that is equal for equal things."""
        more = ":".join(str(self.evidence[name]) for name in ("link", "counter") if name in self.evidence)
        return f"{self.kind}:{self.device}:{more}"


class MachineCheck(Protocol):
    """Looks at one part of the machine. :class:`~holdfast.agent.inspection.steady.Steady` makes it a detector."""

    name: str

    def look(self) -> list[Sign]:
        """Return signs, good and bad; none where there is nothing to look at. Keeps what it needs to see a change."""
        ...

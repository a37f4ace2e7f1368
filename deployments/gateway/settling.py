"""Alerts of jobs that are held back for a moment, until their root is known. Bounded per job."""

from __future__ import annotations

from dataclasses import dataclass, field

from holdfast.models.alert import Alert
from holdfast.policies.exits import is_cascade

PER_JOB = 256


@dataclass
class Settling:
    """One job's alerts that await classification."""

    detected_at: float
    alerts: dict[str, Alert] = field(default_factory=dict)
    until: float = 0.0
    """Decide again at this time at the latest (gateway's clock)."""
    unreachable: set[str] = field(default_factory=set)
    """Machines whose agent was probed and did not answer."""
    probe_at: float | None = 0.0
    """Probe the job's agents from this time on; None while that is done."""

    @property
    def full(self) -> bool:
        """There is room for a root only."""
        return len(self.alerts) >= PER_JOB

    def add(self, alert: Alert) -> bool:
        """Take an alert; False when it is known or there is no room. A root finds room at an echo's cost."""
        if alert.key in self.alerts:
            return False
        if self.full:
            echo = next((key for key, known in self.alerts.items() if is_cascade(known)), None)
            if echo is None or is_cascade(alert):
                return False
            del self.alerts[echo]
        self.alerts[alert.key] = alert
        return True

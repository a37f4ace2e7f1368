"""Alerts of jobs that are held back for a moment, until their root is known. Bounded per job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from holdfast.models.alert import Alert
from holdfast.models.machine import Machine
from holdfast.policies.classify.importance import Importance

PER_JOB = 256


@dataclass
class CorrelationWindow:
    """One job's alerts that await classification."""

    detected_at: float
    alerts: dict[str, Alert] = field(default_factory=dict)
    until: float = 0.0
    """Decide again at this time at the latest (gateway's clock)."""
    unreachable: dict[str, str] = field(default_factory=dict)
    """Machines whose agent was probed and did not answer, each with the incarnation that was probed."""
    probe_at: float | None = 0.0
    """Probe the job's agents from this time on; None while that is done."""

    weights: dict[str, Importance] = field(default_factory=dict)
    """Importance of the alerts, by key."""

    @property
    def full(self) -> bool:
        """Whether there is room only for an alert that weighs more than one that is here."""
        return len(self.alerts) >= PER_JOB

    def still_gone(self, machines: Mapping[str, Machine]) -> frozenset[str]:
        """Return those that did not answer and are as they were asked: one that registered again is there."""
        return frozenset(
            name
            for name, life in self.unreachable.items()
            if name not in machines or machines[name].incarnation == life
        )

    def add(self, alert: Alert, weight: Importance) -> bool:
        """Take an alert; False when it is known or there is no room. One that weighs more displaces the least one."""
        if alert.key in self.alerts:
            return False
        if self.full:
            least = min(self.weights, key=lambda key: self.weights[key])
            if self.weights[least] >= weight:
                return False
            del self.alerts[least], self.weights[least]
        self.alerts[alert.key] = alert
        self.weights[alert.key] = weight
        return True

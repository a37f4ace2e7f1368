"""Shared by tests of detectors: the packaged thresholds and a clock that is moved by hand."""

from __future__ import annotations

from holdfast.agent.inspection.base import Detector, MachineCheck
from holdfast.agent.inspection.steady import Steady
from holdfast.models.alert import Alert, AlertKind
from holdfast.policies.config.policy import Policy

LIMITS = Policy.load().detect


class HandClock:
    """A clock that a test moves by hand."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def steady(check: MachineCheck, clock: HandClock) -> Steady:
    """The detector made of a check, polled by hand."""
    return Steady("m0", check, 1.0, clock=clock, again_s=1.0)


def kinds(alerts: list[Alert]) -> list[AlertKind]:
    """The kinds of the alerts."""
    return [alert.kind for alert in alerts]


def polls(detector: Detector, times: int) -> list[Alert]:
    """Alerts of several polls."""
    return [alert for _ in range(times) for alert in detector.poll()]

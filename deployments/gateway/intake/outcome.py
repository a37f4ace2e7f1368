"""Outcome of an alert: the answer to its sender."""

from __future__ import annotations

from enum import StrEnum

from holdfast.models.base import Frozen


class What(StrEnum):
    """The closed set of outcomes (also a metric label)."""

    OPENED = "opened"  # a new incident
    JOINED = "joined"  # evidence for the open incident of the job
    WAITS = "waits"  # a new incident that acts after the open one
    SETTLING = "settling"  # held back for a moment: the root may still be on its way
    DUPLICATE = "duplicate"  # the same signal was taken already
    SUPPRESSED = "suppressed"  # the incident has more evidence than a person can read
    CORDONED = "cordoned"  # a standby left the pool
    PENDING = "pending"  # a code update that the next restart takes along
    KEPT = "kept"  # the job is held by a person: acted on when the hold ends
    IGNORED = "ignored"  # nothing to act on
    REFUSED = "refused"  # unknown, stale, resolved or malformed


class Outcome(Frozen):
    """Answer for one alert."""

    incident: str | None = None
    outcome: What
    message: str = ""
    error: str = ""
    """Name of the error, when it was refused."""

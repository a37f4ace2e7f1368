"""Conditions that an incident may wait for. Errors name them, so only the standard library is imported here."""

from __future__ import annotations

from enum import StrEnum


class Missing(StrEnum):
    """The condition that has to be met. All but the last two are noticed when they are."""

    STANDBY = "standby"
    """Machines for the slots that have none."""
    APPROVAL = "approval"
    """A person's approval; or the alert that it was asked for is resolved."""
    EVICTIONS = "evictions"
    """The breaker allows evictions again."""
    CONTACT = "contact"
    """Machines that do not answer report again."""
    STATE = "state"
    """A saved state that can be restored: a machine or S3 is back."""
    SERVICE = "service"
    """The service that all machines share works again."""
    RUNS = "runs"
    """Runs of the playbook that are not ended by others: tried again after growing pauses."""
    CHANGE = "change"
    """Other code, or an unknown cause goes away: tried again after growing pauses."""

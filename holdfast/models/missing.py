"""What an incident may lack. Errors name it, so nothing but the standard library is loaded here."""

from __future__ import annotations

from enum import StrEnum


class Missing(StrEnum):
    """What has to come about. All but the last are noticed when they do."""

    STANDBY = "standby"
    """Machines for the slots that have none."""
    APPROVAL = "approval"
    """A person's yes; or the alert that it was asked for is resolved."""
    EVICTIONS = "evictions"
    """The breaker allows evictions again."""
    CONTACT = "contact"
    """Machines that do not answer are heard again."""
    STATE = "state"
    """A saved state that can be restored: a machine or S3 is back."""
    SERVICE = "service"
    """What all machines share works again."""
    CHANGE = "change"
    """Other code, or a cause that nobody sees goes away: tried again after growing pauses."""

"""What an incident waits for that no playbook can bring about, and when it is tried again all the same."""

from __future__ import annotations

from enum import StrEnum

from holdfast.models.base import Frozen
from holdfast.models.names import IncidentId, JobName


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


class Wait(Frozen):
    """One incident's wait. Times are Unix seconds."""

    incident_id: IncidentId
    job: JobName
    missing: Missing
    why: str
    """What is in the way, for people."""
    since: float
    next_at: float
    """When it is tried again at the latest."""
    times: int = 1
    """How often it came to wait, this time included: each wait is longer."""
    runs_on: bool = False
    """The job trains meanwhile: nothing is started again, further signals of the same class are held back."""

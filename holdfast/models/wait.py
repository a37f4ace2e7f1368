"""Waits of an incident for a condition that no playbook can meet, and the time when it is tried again anyway."""

from __future__ import annotations

from holdfast.models.base import Frozen
from holdfast.models.missing import Missing
from holdfast.models.names import IncidentId, JobName


class Wait(Frozen):
    """One incident's wait. Times are Unix seconds."""

    incident_id: IncidentId
    job: JobName
    missing: Missing
    why: str
    """The obstacle, for people."""
    since: float
    next_at: float
    """When it is tried again at the latest."""
    times: int = 1
    """How often it came to wait, this time included: each wait is longer."""
    runs_on: bool = False
    """The job trains meanwhile: nothing is started again, further signals of the same class are held back."""

"""The section of the policy file on processes that outlive their epoch."""

from __future__ import annotations

from pydantic import Field

from holdfast.models.base import MAX_KEEP_S, MAX_SWITCH_S, Given
from holdfast.models.classes import IncidentClass


class KeepPolicy(Given):
    """When ranks whose script allows it (``holdfast.run``) keep their process in a recovery."""

    classes: tuple[IncidentClass, ...]
    """Incidents in which they may."""
    wait_s: float = Field(gt=0, le=MAX_KEEP_S)
    """Seconds that they wait for their next epoch, while the job is diagnosed."""
    switch_s: float = Field(gt=0, le=MAX_SWITCH_S)
    """Seconds in which each must leave its training function, and later begin the next epoch; else it is replaced."""
    restart_first: bool
    """Whether a job is restarted before its diagnosis where a rank died for the first time."""

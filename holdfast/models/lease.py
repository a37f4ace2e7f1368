"""Who may act on a job, and which gateway leads."""

from __future__ import annotations

from holdfast.models.base import Frozen


class JobLease(Frozen):
    """The one playbook run that may act on a job."""

    job: str
    incident_id: str
    attempt: int
    run: str
    """Its flow run."""
    holder: str
    """Host, process, and a word of its own."""
    until: float
    """When it ends unless it is renewed (the database's clock, Unix seconds)."""
    live: bool
    """Whether that was still to come when it was read."""


class Leader(Frozen):
    """The one of several gateways that acts."""

    name: str
    holder: str
    url: str
    until: float

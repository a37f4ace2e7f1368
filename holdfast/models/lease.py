"""Leases: the run that may act on a job, and the gateway that leads."""

from __future__ import annotations

from holdfast.models.base import Frozen
from holdfast.models.names import IncidentId, JobName

HEAD_START = "head start"
"""The run of a lease that the gateway holds while it makes a recovery's first acts (operations/head_start.py)."""
HEAD_START_S = 8.0
"""How long it holds it at most."""
GIVING_UP = "giving up"
"""The run of a lease that the gateway holds while it gives an incident up."""
JOB_LEASE_S = 15.0
"""A run that renews its lease no more counts as dead after this long."""


class JobLease(Frozen):
    """The one playbook run that may act on a job."""

    job: JobName
    incident_id: IncidentId
    attempt: int
    run: str
    """Its flow run."""
    holder: str
    """Host, process, and a unique word."""
    until: float
    """When it ends unless it is renewed (the database's clock, Unix seconds)."""
    live: bool
    """Whether that was still to come when it was read. Clocks are set at times: watch ``until`` change instead."""


class Leader(Frozen):
    """The one of several gateways that acts."""

    name: str
    holder: str
    url: str
    token: int
    """Grows with every change of the leader."""
    renewals: int
    """Grows with every sign of life. A gateway whose own clock shows it unchanged for long enough may take over."""

"""Time that a rank that handles SIGTERM has to end, before SIGKILL."""

from __future__ import annotations

from holdfast.models.classes import ON_PURPOSE, IncidentClass

RECOVERY_S = 0.25
"""Enough to flush a log. In a recovery most ranks wait for a dead peer inside a library, where no handler runs."""


def grace_s(wanted_s: float, why: IncidentClass | None = None) -> float:
    """Seconds, of the ``wanted_s`` of the job file.

    Args:
        wanted_s: what the job file allows.
        why: class of the incident that has the job stopped; None: a person stops it.
    """
    if why is None or why in ON_PURPOSE:
        return wanted_s
    return min(wanted_s, RECOVERY_S)

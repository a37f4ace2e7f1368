"""Time that a rank that handles SIGTERM has to end, before SIGKILL."""

from __future__ import annotations

from holdfast.models.classes import ON_PURPOSE, IncidentClass
from holdfast.models.job import JobSpec


def grace_s(spec: JobSpec, why: IncidentClass | None = None) -> float:
    """Return what the job file gives, in seconds.

    Args:
        spec: the job file.
        why: class of the incident that has the job stopped; None: a person stops it.
    """
    if why is None or why in ON_PURPOSE:
        return spec.stop_grace_s
    # Of who wants none at all when stopped, a recovery is no exception.
    return spec.recovery_grace_s if spec.stop_grace_s else 0.0

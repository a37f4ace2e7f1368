"""Disks that are full on one machine of a job after the other: the job fills them, and no machine is at fault."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from holdfast.models.alert import Alert, AlertKind, Incident, IncidentClass
from holdfast.models.base import Frozen

WINDOW_S = 86_400.0
"""An eviction for a full disk counts for so long."""
_KINDS = frozenset({AlertKind.DISK_FULL, AlertKind.INODES_FULL})


class Evicted(Frozen):
    """An earlier eviction from the job for a full disk."""

    incident: str
    machine: str
    at: float
    """Unix seconds."""


def is_of_space(alerts: Iterable[Alert]) -> bool:
    """Return whether space was short on a machine, as a monitor or a rank's last words report it."""
    return any(
        alert.kind in _KINDS
        or (alert.kind is AlertKind.RANK_EXIT and alert.evidence.get("cause") == "disk_space")
        for alert in alerts
    )


def precedes(earlier: Incident, incident: Incident, submitted_at: float) -> bool:
    """Return whether an earlier incident was one of space too, since the job was submitted.

    A full disk beside a lost GPU shows nothing of the job: that machine went for its GPU.
    """
    return (
        earlier.incident_class is IncidentClass.STORAGE_FAULT
        and submitted_at <= earlier.opened_at < incident.opened_at
        and is_of_space(earlier.alerts)
    )


def why_spared(accused: Collection[str], past: Sequence[Evicted], now: float) -> str:
    """Return why the machines that are short of space now are not evicted; empty: nothing is in the way.

    Args:
        accused: their names.
        past: machines of the job that were evicted for it, the oldest first.
        now: Unix seconds.
    """
    before = [each for each in past if now - each.at <= WINDOW_S and each.machine not in accused]
    if not accused or not before:
        return ""
    last = before[-1]
    return (
        f"no space was left on {last.machine} either ({last.incident}): the job fills the disks of its machines, "
        "and none of them is at fault"
    )

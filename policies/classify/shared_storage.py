"""Storage that several machines wait for: no machine is at fault, and what they share is waited for.

A process that waits in the kernel (state D) on one machine alone, or a mount that one machine alone misses, is that
machine's. Where the clients of a network file system report that its server does not answer, it is the server's.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from holdfast.models.alert import Alert, AlertKind
from holdfast.models.job import Job
from holdfast.policies.join_names import join_names


def waiting(alerts: Sequence[Alert], job: Job) -> tuple[str, ...]:
    """Return the machines of the job that wait for storage which is not theirs alone, by name; empty: none do."""
    blocked = blocked_on(alerts, job)
    mounts: dict[str, set[str]] = defaultdict(set)
    for alert in alerts:
        if alert.kind is AlertKind.MOUNT_UNRESPONSIVE and alert.machine in job.machines:
            mounts[str(alert.evidence.get("device", ""))].add(str(alert.machine))
    groups = [blocked, *(blocked | where for where in mounts.values())]
    of_server = blocked & {alert.machine for alert in alerts if _of_server(alert)}
    found = {name for group in groups if len(group) > 1 for name in group} | of_server
    return tuple(sorted(found))


def blocked_on(alerts: Iterable[Alert], job: Job) -> set[str]:
    """Return the machines whose ranks were seen waiting in the kernel for long, in a hang."""
    ranks = {
        rank
        for alert in alerts
        if alert.kind is AlertKind.HANG and not alert.evidence.get("stopped")
        for rank in alert.evidence.get("blocked") or ()
        if isinstance(rank, int) and 0 <= rank < job.spec.world_size
    }
    return {job.machine_of(rank) for rank in ranks if job.machines}


def accuses(alert: Alert, machines: Sequence[str]) -> bool:
    """Return whether an alert has more against one of ``machines`` than that it waits for storage."""
    return alert.kind not in (AlertKind.MOUNT_UNRESPONSIVE, AlertKind.HANG) or alert.machine not in machines


def describe(alerts: Sequence[Alert], machines: Sequence[str], job: Job) -> str:
    """Describe what is waited for, as a reason."""
    blocked = sorted(blocked_on(alerts, job))
    how = f"processes on {join_names(blocked)} wait in the kernel" if blocked else "a mount does not answer"
    server = " and its server does not answer" if len(machines) == 1 else ""
    return f"{how}{server}: storage that {join_names(machines)} shares with others, no machine's own"


def _of_server(alert: Alert) -> bool:
    """Return whether a client of a network file system reports its server, for which it waits."""
    return alert.kind is AlertKind.MOUNT_UNRESPONSIVE and alert.evidence.get("recovers") is True

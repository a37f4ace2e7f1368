"""A slow pace that many machines explain in the same way: what they share is at fault, such as cooling or power."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from holdfast.models.alert import Alert, AlertKind, IncidentClass
from holdfast.models.alert_kinds.meaning import Beside
from holdfast.models.job import Job
from holdfast.policies.classify.meaning import harmless, meaning
from holdfast.policies.config.policy import Policy


def of_pace(alerts: Iterable[Alert], job: Job, policy: Policy) -> str:
    """Return why a slow pace has a cause that many machines share; empty: no such cause is known."""
    shared = _shared(alerts, job, policy)
    kind = max(shared, key=lambda each: len(shared[each]), default=None)
    if kind is None:
        return ""
    limit = policy.aggregate.limit(len(job.machines))
    many, what = len(shared[kind]), kind.value.replace("_", " ")
    return (
        f"{what} on {many} machines at once, more than the over-eviction limit of {limit} for "
        f"{len(job.machines)} machines: a common cause is likely, a human decides"
    )


def apart(alerts: Sequence[Alert], job: Job, policy: Policy) -> Sequence[Alert]:
    """Return the alerts that may explain a slow pace; beside a shared cause only those of another fault.

    A port with errors stays the explanation of a slow pace in a room that is hot.
    """
    shared = _shared(alerts, job, policy)
    if not shared:
        return alerts
    return [
        alert
        for alert in alerts
        if alert.kind not in shared and meaning(alert, policy.classify).means is not IncidentClass.FAIL_SLOW
    ]


def _shared(alerts: Iterable[Alert], job: Job, policy: Policy) -> dict[AlertKind, set[str]]:
    """Return the kinds that explain a slow pace on more machines than may be evicted at once, with these."""
    machines: dict[AlertKind, set[str]] = defaultdict(set)
    for alert in alerts:
        explains = Beside.SLOW in meaning(alert, policy.classify).beside and not harmless(alert)
        if explains and alert.machine in job.machines:
            machines[alert.kind].add(str(alert.machine))
    limit = policy.aggregate.limit(len(job.machines))
    return {kind: named for kind, named in machines.items() if len(named) > limit}

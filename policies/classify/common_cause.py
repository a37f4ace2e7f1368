"""A slow pace that many machines explain in the same way: what they share is at fault, such as cooling or power."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from holdfast.models.alert import Alert, AlertKind
from holdfast.models.alert_kinds.meaning import Beside
from holdfast.models.job import Job
from holdfast.policies.classify.meaning import harmless, meaning
from holdfast.policies.config.policy import Policy


def of_pace(alerts: Iterable[Alert], job: Job, policy: Policy) -> str:
    """Return why a slow pace has a cause that many machines share; empty: no such cause is known."""
    machines: dict[AlertKind, set[str]] = defaultdict(set)
    for alert in alerts:
        explains = Beside.SLOW in meaning(alert, policy.classify).beside and not harmless(alert)
        if explains and alert.machine in job.machines:
            machines[alert.kind].add(str(alert.machine))
    limit = policy.aggregate.limit(len(job.machines))
    kind = max(machines, key=lambda each: len(machines[each]), default=None)
    if kind is None or len(machines[kind]) <= limit:
        return ""
    many, what = len(machines[kind]), kind.value.replace("_", " ")
    return (
        f"{what} on {many} machines at once, more than the over-eviction limit of {limit} for "
        f"{len(job.machines)} machines: a common cause is likely, a human decides"
    )

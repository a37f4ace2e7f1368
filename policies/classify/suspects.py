"""Machines that an incident's alerts accuse, surely or not."""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.models.alert import Alert
from holdfast.models.job import Job
from holdfast.policies.classify.meaning import harmless


def named(alerts: Iterable[Alert], root: str | None, job: Job) -> tuple[str, ...]:
    """Return the root alert's machine first, then the others; only machines of the job, each once.

    A rank that merely lost its peer accuses no machine, nor does an ordinary exit on another machine than the root's,
    nor a signal that asks for no action.
    """
    found = [root] if root else []
    found += [
        alert.machine
        for alert in alerts
        if alert.kind.row.accuses_machine and alert.machine and not harmless(alert)
    ]
    return tuple(name for name in dict.fromkeys(found) if name in job.machines)

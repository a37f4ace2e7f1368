"""Machines that an incident's alerts accuse, surely or not."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.models.alert import Alert
from holdfast.models.job import Job
from holdfast.policies.classify import shared_storage
from holdfast.policies.classify.meaning import harmless


def named(alerts: Sequence[Alert], root: str | None, job: Job) -> tuple[str, ...]:
    """Return the root alert's machine first, then the others; only machines of the job, each once.

    A rank that merely lost its peer accuses no machine, nor does an ordinary exit on another machine than the root's,
    nor a signal that asks for no action, nor does storage that several machines wait for. A stopped process does not
    wait for it.
    """
    about = [
        alert for alert in alerts if alert.kind.row.accuses_machine and alert.machine and not harmless(alert)
    ]
    waiting = shared_storage.waiting(alerts, job)
    found = [str(alert.machine) for alert in about if shared_storage.accuses(alert, waiting)]
    stopped = [alert.machine for alert in alerts if alert.evidence.get("stopped")]
    if root and (root not in waiting or root in (*found, *stopped)):
        found.insert(0, root)
    return tuple(name for name in dict.fromkeys(found) if name in job.machines)

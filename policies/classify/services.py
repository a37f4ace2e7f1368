"""Faults of what all machines share (storage, a mount, a service), as opposed to one machine's."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from holdfast.errors import LimitError
from holdfast.models.alert import Alert, Finding, IncidentClass
from holdfast.models.missing import Missing
from holdfast.policies.classify.meaning import CAUSES

SHARED_CHECKS = frozenset(
    {
        "storage_unreachable",
        "mount_unresponsive",
        "mount_readonly",
        "storage",
        "mount",
        "s3",
        "external_service",
    }
)


_OF_SERVERS = frozenset({"storage_unreachable", "mount_unresponsive"})
"""Checks that fail where a server does not answer."""


def shared_fault(findings: Iterable[Finding], machines: int) -> str:
    """Return the failing check of storage or a service that most machines report; empty: none.

    A mount or a store that does not answer is shared where several machines report it: one machine's is its own.
    """
    failing: dict[str, set[str]] = defaultdict(set)
    for finding in findings:
        if not finding.ok and finding.check in SHARED_CHECKS:
            failing[finding.check].add(finding.machine)
    for check, where in sorted(failing.items()):
        few = 1 if check in _OF_SERVERS else machines // 2
        if len(where) > max(1, few) or len(where) == machines:
            return f"{check.replace('_', ' ')} on {len(where)} of {machines} machines"
    return ""


def failed_it(root: Alert) -> bool:
    """Return whether a rank ended because a service outside of the job failed it, by the end of its log."""
    return CAUSES.get(str(root.evidence.get("cause") or "")) is IncidentClass.EXTERNAL_SERVICE


def must_be_in_time(shared: str, now: float, deadline: float) -> None:
    """Refuse to wait any longer.

    Raises:
        LimitError: the deadline has passed.
    """
    if now > deadline:
        raise LimitError(
            f"{shared} is still not available; fix it, then `holdfast resume` the job", Missing.SERVICE
        )

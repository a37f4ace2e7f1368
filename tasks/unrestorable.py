"""The message about a job whose checkpoints do not restore."""

from __future__ import annotations

from holdfast.errors import LimitError
from holdfast.models.checkpoint import Tier
from holdfast.tasks.prove import ProvenCopies
from holdfast.tasks.recovery_context import RecoveryContext


def judge(case: RecoveryContext, copies: ProvenCopies, kept: str) -> str:
    """Return a message that all is well after all.

    Raises:
        LimitError: it is not: what would be lost, where, and what a person should do.
    """
    if not copies.failed and copies.proven(Tier.MEMORY):
        return f"proven again: memory {copies.summary(Tier.MEMORY)}; in S3: {kept}"
    why = copies.failed[0].result if copies.failed else _first_detail(case)
    raise LimitError(
        f"{why}. The job runs on, but its newest state would not come back. Copies on peers: "
        f"{copies.summary(Tier.PEER)}; in S3: {kept}. Change what is saved at that path (`holdfast update "
        f"{case.job}`), or stop the job at a step that is proven; `holdfast doctor {case.job}` proves again, and a "
        "rehearsal that succeeds ends this"
    )


def _first_detail(case: RecoveryContext) -> str:
    details = [str(alert.evidence["detail"]) for alert in case.incident.alerts if "detail" in alert.evidence]
    return details[0] if details else "; ".join(case.incident.reasons)

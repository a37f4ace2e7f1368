"""The gateway's decision taken again: which incident the alerts are, if any."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.hindsight.incident_record import Record
from holdfast.models.alert import Alert, Classification
from holdfast.models.history import Epoch
from holdfast.models.job import Job
from holdfast.policies.classify.decision import JobContext, NoAction, TooEarly
from holdfast.policies.classify.incident_class import classify
from holdfast.policies.config.policy import Policy
from holdfast.policies.escalate import code
from holdfast.storage.ledger.inputs import OPENED

_MOST_WAITS = 20


@dataclass(frozen=True)
class ReplayedOpening:
    """A policy's decision about the alerts."""

    found: Classification | None
    """None: it opens no incident."""
    reasons: tuple[str, ...]
    """Waits for the root cause, and the reason why nothing is opened."""


def recorded(record: Record) -> Classification:
    """Return the classification with which the incident was opened."""
    row = record.incident
    return Classification(
        incident_class=row.incident_class,
        confidence=row.confidence,
        machine=row.machine,
        rank=row.rank,
        reasons=row.reasons,
    )


def decide(record: Record, job: Job, policy: Policy) -> ReplayedOpening:
    """Classify again what the gateway had in hand; later than it did, where the policy waits longer for a root."""
    if record.by_hand:
        return ReplayedOpening(recorded(record), ("opened by a person",))
    context = _context(record, job)
    reasons: list[str] = []
    for _ in range(_MOST_WAITS):
        decision = classify(_in_hand(record, context.now), context, policy)
        if isinstance(decision, Classification):
            return ReplayedOpening(decision, tuple(reasons))
        if isinstance(decision, NoAction):
            return ReplayedOpening(None, (*reasons, f"no incident: {decision.reason}"))
        reasons.append(_waits(decision, context))
        context = context.model_copy(update={"now": max(decision.until_s, context.now + 0.001)})
    return ReplayedOpening(None, (*reasons, "waits for a root cause that never comes"))


def _in_hand(record: Record, now: float) -> Sequence[Alert]:
    return record.opened_by if now <= record.incident.opened_at else record.joined_by(now)


def _waits(decision: TooEarly, context: JobContext) -> str:
    return f"waits {max(0.0, decision.until_s - context.now):.1f} s: {decision.why}"


def _context(record: Record, job: Job) -> JobContext:
    known = record.inputs.get(OPENED)
    if known is not None:
        # Earlier releases recorded more.
        facts = {name: value for name, value in known["context"].items() if name in JobContext.model_fields}
        return JobContext.model_validate(facts)
    row = record.incident
    record.lacks.append("which machines did not answer when it was opened: none is taken to be silent")
    return JobContext(
        job=job,
        now=row.opened_at,
        received_at=row.detected_at,
        code_changed_at=_changed_at(record.epochs, row.epoch, job),
    )


def _changed_at(epochs: Sequence[Epoch], until: int, job: Job) -> float | None:
    return code.changed_at([each for each in epochs if each.epoch <= until], job.submitted_at)

"""The ladder of escalation: retry, rollback, replay, a human (BR section 5).

A rung that did not bring progress is not tried again: budgets count attempts without progress, not restarts,
and progress refills them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from holdfast.models.alert import IncidentClass, Rung
from holdfast.models.base import Frozen
from holdfast.policies.policy import LadderPolicy

ORDER = (Rung.RETRY, Rung.ROLLBACK, Rung.REPLAY)


class PastIncident(Frozen):
    """An earlier incident of the same job that was closed."""

    incident_class: IncidentClass
    epoch: int
    at: float
    rungs: tuple[Rung, ...] = ()
    """Rungs that its playbook tried."""
    progressed_steps: int = 0
    """New steps (beyond all done before) until the next incident, or until now."""


class RungDecision(Frozen):
    """What to try next, and why."""

    rung: Rung
    reasons: tuple[str, ...]


def next_rung(
    history: Sequence[PastIncident], done_rungs: Sequence[Rung], policy: LadderPolicy, can_rollback: bool
) -> RungDecision:
    """The lowest rung with budget left.

    Args:
        history: earlier incidents of the job, oldest first.
        done_rungs: rungs that this incident tried already.
        policy: budgets, and how many new steps count as progress.
        can_rollback: an earlier good code version exists.
    """
    fruitless = _since_progress(history, policy.progress_steps)
    tried = Counter(done_rungs)
    for past in fruitless:
        tried.update(_attempts(past))
    reasons = [_summary(fruitless, policy.progress_steps)]
    for rung in ORDER:
        budget = policy.attempts.get(rung, 0)
        if rung is Rung.ROLLBACK and not can_rollback:
            reasons.append("rollback: no earlier good code version")
        elif tried[rung] >= budget:
            reasons.append(f"{rung.value}: tried {tried[rung]} of {budget} times without progress")
        else:
            reasons.append(f"{rung.value}: tried {tried[rung]} of {budget} times without progress, so try it")
            return RungDecision(rung=rung, reasons=tuple(reasons))
    reasons.append("all rungs are spent: a human decides")
    return RungDecision(rung=Rung.HUMAN, reasons=tuple(reasons))


def _since_progress(history: Sequence[PastIncident], enough: int) -> list[PastIncident]:
    """The newest incidents, back to the last one after which the job made progress (that one left out)."""
    fruitless: list[PastIncident] = []
    for past in reversed(history):
        if past.progressed_steps >= enough:
            break
        fruitless.append(past)
    return fruitless[::-1]


def _attempts(past: PastIncident) -> tuple[Rung, ...]:
    """Rungs that an incident used up.

    A playbook that evicted and restarted without a rung was a retry: "crashes again after an eviction" leads
    to the rollback (BR section 5). An engineer's update is no attempt to recover.
    """
    if past.rungs or past.incident_class is IncidentClass.CODE_UPDATE:
        return past.rungs
    return (Rung.ROLLBACK,) if past.incident_class is IncidentClass.USER_CODE_ERROR else (Rung.RETRY,)


def _summary(fruitless: Sequence[PastIncident], enough: int) -> str:
    if not fruitless:
        return f"no earlier incident without progress ({enough} new steps)"
    listed = ", ".join(f"{past.incident_class.value} in epoch {past.epoch}" for past in fruitless)
    return f"{len(fruitless)} earlier without progress ({enough} new steps): {listed}"

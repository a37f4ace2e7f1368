"""The ladder of escalation: what to try next when no check names a culprit (BR section 5).

Each class has its own ladder in the policy file. A rung that did not bring progress is not tried again: an entry of
the list is one attempt without progress, not a restart, and progress refills them all. The same symptom in another
context is climbed in another order: see :func:`order`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from holdfast.models.alert import IncidentClass, Rung
from holdfast.models.base import Frozen
from holdfast.policies.policy import ClassLadder


class PastIncident(Frozen):
    """An earlier incident of the same job that was closed."""

    incident_class: IncidentClass
    epoch: int
    at: float
    rungs: tuple[Rung, ...] = ()
    """Rungs that its playbook tried."""
    progressed_steps: int = 0
    """New steps (beyond all done before) until the next incident, or until now."""


class Circumstances(Frozen):
    """What is known beside the symptom."""

    can_rollback: bool = False
    """An earlier good code version exists."""
    code_changed_s_ago: float | None = None
    """How long before the fault the code was switched; None: never since the submission."""
    accused: tuple[str, ...] = ()
    """Machines that the alerts speak against."""
    offenders: frozenset[str] = frozenset()
    """Machines that were accused often of late, in any job."""
    switch: str = ""
    """The switch that all accused machines hang on, when they are several."""
    common_cause: bool = False
    """A diagnosis saw the fault on every machine: code or data."""
    poisoned: str = ""
    """Why the restored state is to be left behind (:mod:`holdfast.policies.poisoned`); empty: it is not."""
    once_more: str = ""
    """Why it is to be restored once more before a person is asked: it is suspected, on too little."""
    states_spent: str = ""
    """Why no further state is left behind."""


class RungDecision(Frozen):
    """What to try next, and why."""

    rung: Rung
    reasons: tuple[str, ...]


def order(
    ladder: ClassLadder, seen: Circumstances, code_changed_s: float
) -> tuple[tuple[Rung, ...], list[str]]:
    """The rungs in the order that the circumstances call for, and why it differs from the ladder's own.

    * every machine shows the fault, or the code changed just before it: roll back first;
    * an accused machine is a repeat offender: evict it first;
    * several machines of one switch: none of them is evicted, the switch is at fault;
    * the restored state led to the same failure before: an older state comes before everything but these.
    """
    rungs, why = list(ladder.rungs), []
    if seen.poisoned:
        rungs = [Rung.OLDER_STATE, *rungs]
        why.append(seen.poisoned)
    if seen.states_spent:
        why.append(seen.states_spent)
    if seen.switch and Rung.EVICT in rungs:
        rungs = [rung for rung in rungs if rung is not Rung.EVICT]
        why.append(f"{len(seen.accused)} machines of switch {seen.switch}: the switch, not its machines")
    repeat = sorted(seen.offenders.intersection(seen.accused))
    if repeat and not seen.switch:
        rungs = [Rung.EVICT, *(rung for rung in rungs if rung is not Rung.EVICT)]
        why.append(f"{', '.join(repeat)}: accused often of late, so evicted before anything is tried again")
    changed = seen.code_changed_s_ago is not None and seen.code_changed_s_ago <= code_changed_s
    if (changed or seen.common_cause) and Rung.ROLLBACK in rungs and seen.can_rollback:
        rungs = [Rung.ROLLBACK, *(rung for rung in rungs if rung is not Rung.ROLLBACK)]
        why.append(
            "every machine shows the fault, so the code is rolled back first"
            if seen.common_cause
            else f"the code changed {seen.code_changed_s_ago:.0f} s before, so it is rolled back first"
        )
    return tuple(rungs), why


def next_rung(  # noqa: PLR0917
    history: Sequence[PastIncident],
    done_rungs: Sequence[Rung],
    ladder: ClassLadder,
    progress_steps: int,
    seen: Circumstances,
    code_changed_s: float = 0.0,
) -> RungDecision:
    """The first rung with an attempt left.

    Args:
        history: earlier incidents of the job, oldest first.
        done_rungs: rungs that this incident tried already.
        ladder: of the incident's class.
        progress_steps: so many new steps after an incident refill the budgets.
        seen: circumstances.
        code_changed_s: a code change counts as recent for so long.
    """
    fruitless = since_progress(history, progress_steps)
    tried = Counter(done_rungs)
    for past in fruitless:
        tried.update(_attempts(past))
    rungs, why = order(ladder, seen, code_changed_s)
    reasons = [_summary(fruitless, progress_steps), *why]
    budgets = Counter(rungs)
    for rung in dict.fromkeys(rungs):
        told = f"{rung.value}: tried {tried[rung]} of {budgets[rung]} times without progress"
        if rung is Rung.ROLLBACK and not seen.can_rollback:
            reasons.append("rollback: no earlier good code version")
        elif rung is Rung.EVICT and not seen.accused:
            reasons.append("evict: the alerts accuse no machine")
        elif rung is Rung.OLDER_STATE:  # bounded by the policy that found it
            return RungDecision(rung=rung, reasons=tuple(reasons))
        elif tried[rung] >= budgets[rung]:
            reasons.append(told)
        else:
            return RungDecision(rung=rung, reasons=(*reasons, f"{told}, so try it"))
    if seen.once_more:
        return RungDecision(rung=Rung.RETRY, reasons=(*reasons, seen.once_more))
    what = "a human decides" if ladder.end is Rung.HUMAN else "the job is stopped"
    return RungDecision(rung=ladder.end, reasons=(*reasons, f"all rungs are spent: {what}"))


def since_progress(history: Sequence[PastIncident], enough: int) -> list[PastIncident]:
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

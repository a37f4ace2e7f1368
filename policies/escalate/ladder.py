"""The ladder of escalation: the next attempt when no check names a culprit (ByteRobust section 5).

Each class has its own ladder in the policy file. A rung that did not bring progress is not tried again: an entry of
the list is one attempt without progress, not a restart, and progress refills them all. Only the same failure coming
again climbs (:mod:`holdfast.policies.classify.signature`): different ones have a ladder each. A rung without evidence
for it (:mod:`holdfast.policies.escalate.evidence`) is one more retry. The same symptom in another context is
climbed in another order: see :func:`order`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from pydantic import Field

from holdfast.errors import (
    CheckpointError,
    DamagedError,
    ScriptRefusedError,
    UnavailableError,
    UncoveredError,
)
from holdfast.models.alert import AlertKind, Rung
from holdfast.models.base import Frozen
from holdfast.models.classes import ON_PURPOSE, IncidentClass
from holdfast.policies.classify.signature import Signature, same, same_step
from holdfast.policies.config.ladders import ClassLadder
from holdfast.policies.escalate.regular import Regular

ANY = Signature()
"""A signature that equals any other."""


class PastIncident(Frozen):
    """An earlier incident of the same job that was closed."""

    incident_class: IncidentClass
    epoch: int
    at: float
    rungs: tuple[Rung, ...] = ()
    """Rungs that its playbook tried."""
    progressed_steps: int = 0
    """New steps (beyond all done before) until the next incident, or until now."""
    redone_steps: int = 0
    """Steps until then that had been done before: it had fallen back to an older state."""
    ran_on: bool = False
    """The job reports no steps, and its ranks ran long enough until then to count as progress."""
    signature: Signature = Signature()
    """Signature of the failure."""


class Circumstances(Frozen):
    """Known circumstances beside the symptom."""

    can_rollback: bool = False
    """An earlier good code version exists."""
    code_changed_s_ago: float | None = None
    """Seconds before the fault at which the code was switched; None: never since the submission."""
    accused: tuple[str, ...] = ()
    """Machines that the alerts accuse."""
    spared: str = ""
    """Why machines that stand out are not accused; empty: none is spared."""
    busy: str = ""
    """Why no machine is at fault, and the job may be started again; empty: one may be."""
    offenders: frozenset[str] = frozenset()
    """Machines that were accused often of late, in any job."""
    flapping: Mapping[str, str] = Field(default_factory=dict)
    """Reasons, by machine, for those of them that come and go."""
    switch: str = ""
    """The switch of all accused machines, when they are several."""
    common_cause: bool = False
    """A diagnosis saw the fault on every machine: code or data."""
    poisoned: str = ""
    """Why the restored state is to be left behind (:mod:`holdfast.policies.restore.poisoned`); empty: it is not."""
    once_more: str = ""
    """Why it is to be restored once more before a person is asked: the suspicion rests on too little evidence."""
    states_spent: str = ""
    """Why no further state is left behind."""
    signature: Signature = Signature()
    """Signature of the present failure; empty: nothing distinguishes it from earlier failures."""
    waited: str = ""
    """Why it is started once more although the ladder is spent: it waited, or something arrived; empty: it did not."""
    code_cleared: str = ""
    """Why the code is not at fault; empty: it may be."""
    replay_cleared: str = ""
    """Why no replay can show it; empty: one may."""
    regular: Regular | None = None
    """The regularity of the job's failures; None: there is none."""
    came_with: str = ""
    """Why a leak came with the running code version; empty: there is none, or it need not have."""
    fell_again: int = 0
    """Times that the job failed in the same way after this incident had restarted it, before it made a step."""
    by_data: bool = True
    """Whether data may cause failures of this class: a full disk, or a service that is away, is none of them."""
    may_skip: int = 0
    """Number of steps that the job may skip (`skip_bad_batches` of its file)."""
    skipped: tuple[int, ...] = ()
    """Steps that it skips already."""
    no_retry: str = ""
    """Why the same failure would surely come again at once; empty: it need not."""
    only_machine: str = ""
    """The job's only machine, where a standby may take its place; empty: it has more, or was moved lately."""

    @property
    def repeat_offenders(self) -> list[str]:
        """Accused machines that were accused often of late."""
        return sorted(self.offenders.intersection(self.accused))


class RungDecision(Frozen):
    """The next attempt, and why."""

    rung: Rung
    reasons: tuple[str, ...]
    data: str = ""
    """Why the data is a suspect too; empty: it is not."""
    skip: int | None = None
    """The step whose data is skipped; None: none is."""
    elsewhere: bool = False
    """The job's only machine is left for a standby, without evidence against it."""


def order(
    ladder: ClassLadder, seen: Circumstances, code_changed_s: float
) -> tuple[tuple[Rung, ...], list[str]]:
    """Return the rungs in the order that the circumstances call for, and why it differs from the ladder's own.

    * every machine shows the fault, or the code changed just before it: roll back first;
    * an accused machine is a repeat offender: evict it first;
    * several machines of one switch: none of them is evicted, the switch is at fault;
    * a leak came with the running version: what ran longer before it is rolled back to;
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
    repeat = seen.repeat_offenders
    if repeat and not seen.switch:
        rungs = [Rung.EVICT, *(rung for rung in rungs if rung is not Rung.EVICT)]
        why += [f"{name}: {seen.flapping[name]}" for name in repeat if name in seen.flapping]
        why.append(f"{', '.join(repeat)}: accused often recently, so evicted before anything is tried again")
    new = seen.code_changed_s_ago is not None and seen.code_changed_s_ago <= code_changed_s
    changed = new and not seen.code_cleared
    back = changed or seen.common_cause or seen.came_with
    if back and Rung.ROLLBACK in rungs and seen.can_rollback:
        rungs = [Rung.ROLLBACK, *(rung for rung in rungs if rung is not Rung.ROLLBACK)]
        why.append(
            "every machine shows the fault, so the code is rolled back first"
            if seen.common_cause
            else seen.came_with
            or f"the code changed {seen.code_changed_s_ago:.0f} s before, so it is rolled back first"
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
    """Return the first rung with an attempt left, and whether the data is a suspect.

    Args:
        history: earlier incidents of the job, oldest first.
        done_rungs: rungs that this incident tried already.
        ladder: of the incident's class.
        progress_steps: number of new steps after an incident that refill the budgets.
        seen: circumstances.
        code_changed_s: a code change counts as recent for so long.
    """
    fruitless = since_progress(history, progress_steps, seen.signature)
    decision = _choose(history, fruitless, done_rungs, ladder, progress_steps, seen, code_changed_s)
    may_be = seen.by_data and not seen.no_retry
    data = _suspect_data(fruitless, seen.signature, seen.fell_again) if may_be else ""
    decision = _skip(decision, data, seen) or decision.model_copy(update={"data": data})
    again = fruitless or seen.fell_again
    return (_elsewhere(decision, ladder, seen) if again else None) or decision


_OF_STATES = (CheckpointError, ScriptRefusedError, DamagedError, UncoveredError, UnavailableError)
_OF_NO_DATA = frozenset({AlertKind.REPLICA_DIFFERS.value, *(error.__name__ for error in _OF_STATES)})
"""Failures that data does not make: replicas apply the same gradients, whatever they were computed from; and errors of
saves and restores, also of a store that does not answer, come before a sample is read."""
_AFTER_DATA = frozenset({Rung.RETRY, Rung.OLDER_STATE, Rung.REPLAY, Rung.HUMAN, Rung.STOP})
"""Rungs that wait while the data is a suspect and may be skipped; evidence against code or a machine comes first."""


def _skip(decision: RungDecision, data: str, seen: Circumstances) -> RungDecision | None:
    """Skip the data instead; None: it is no suspect, was skipped in vain, or the job file forbids it."""
    step, left = (seen.signature.position.step or 0) + 1, seen.may_skip - len(seen.skipped)
    if not data or decision.rung not in _AFTER_DATA or left < 1 or step in seen.skipped:
        return None
    reason = f"the data of step {step} is skipped: the job file allows {left} more"
    return RungDecision(rung=Rung.SKIP_DATA, reasons=(*decision.reasons, reason), data=data, skip=step)


def _elsewhere(decision: RungDecision, ladder: ClassLadder, seen: Circumstances) -> RungDecision | None:
    """Try a standby instead, where no other machine shows whether the only one is at fault; None: by the ladder.

    Before steps are lost with an older state, before a replay, which has nothing to compare the machine with, and
    before the ladder's end. Not where anything speaks against the code.
    """
    last = decision.rung in (Rung.OLDER_STATE, Rung.REPLAY, ladder.end) or seen.once_more in decision.reasons
    if not last or not seen.only_machine or seen.no_retry or not seen.code_cleared:
        return None
    reason = (
        f"{seen.only_machine} is the only machine, so that nothing shows whether it is at fault: tried on a "
        "standby"
    )
    reasons = (*decision.reasons, reason)
    return decision.model_copy(update={"rung": Rung.EVICT, "reasons": reasons, "elsewhere": True})


def _choose(  # noqa: PLR0917
    history: Sequence[PastIncident],
    fruitless: Sequence[PastIncident],
    done_rungs: Sequence[Rung],
    ladder: ClassLadder,
    progress_steps: int,
    seen: Circumstances,
    code_changed_s: float,
) -> RungDecision:
    tried = Counter(done_rungs)
    for past in fruitless:
        tried.update(_attempts(past))
    rungs, why = order(ladder, seen, code_changed_s)
    reasons = [_summary(fruitless, history, progress_steps, seen), *why]
    budgets = Counter(rungs)
    spare, left = 0, tried[Rung.RETRY] - budgets[Rung.RETRY]
    """Retries in the place of rungs without evidence for them, and those of them that were used."""
    for rung in dict.fromkeys(rungs):
        counted = f"{rung.value}: tried {tried[rung]} of {budgets[rung]} times without progress"
        if rung is Rung.OLDER_STATE:  # bounded by the policy that found it
            return RungDecision(rung=rung, reasons=tuple(reasons))
        if cleared := _cleared(rung, seen):
            reasons.append(f"{rung.value}: {cleared}")
            spare += budgets[rung]
            if left < spare and not seen.no_retry:
                reasons.append("a retry in its place")
                return RungDecision(rung=Rung.RETRY, reasons=tuple(reasons))
        elif impossible := _impossible(rung, seen):
            reasons.append(f"{rung.value}: {impossible}")
        elif tried[rung] >= budgets[rung]:
            reasons.append(counted)
        else:
            return RungDecision(rung=rung, reasons=(*reasons, f"{counted}, so try it"))
    if more := seen.once_more or seen.waited:
        return RungDecision(rung=Rung.RETRY, reasons=(*reasons, more))
    what = "a human decides" if ladder.end is Rung.HUMAN else "the job is stopped"
    return RungDecision(rung=ladder.end, reasons=(*reasons, f"all rungs are used up: {what}"))


def _cleared(rung: Rung, seen: Circumstances) -> str:
    """Return why there is no evidence for a rung; a fault shown by a replay on every machine points to the code."""
    if rung is Rung.ROLLBACK and seen.can_rollback and not (seen.common_cause or seen.came_with):
        return seen.code_cleared
    if rung is Rung.EVICT:
        return seen.busy
    return seen.replay_cleared if rung is Rung.REPLAY else ""


def _impossible(rung: Rung, seen: Circumstances) -> str:
    if rung is Rung.ROLLBACK and not seen.can_rollback:
        return "no earlier good code version"
    if rung is Rung.RETRY:
        return seen.no_retry
    return (seen.spared or "the alerts accuse no machine") if rung is Rung.EVICT and not seen.accused else ""


def since_progress(
    history: Sequence[PastIncident], enough: int, signature: Signature = ANY
) -> list[PastIncident]:
    """Return the newest incidents of the same failure, back to the last one after which the job made progress.

    That one is left out. New steps are progress. So are steps computed again after a fall-back to an older state,
    unless it failed where it had failed before; and a long run of a job that reports no steps. An empty ``signature``
    is the same as any.
    """
    fruitless: list[PastIncident] = []
    new, redone, then = 0, 0, signature
    for past in reversed(history):
        new, redone = new + past.progressed_steps, redone + past.redone_steps
        if past.ran_on or new >= enough:
            break
        if not same(past.signature, signature):
            continue
        if new + redone >= enough and redone and not same_step(past.signature, then):
            break
        fruitless.append(past)
        new, redone, then = 0, 0, past.signature
    return fruitless[::-1]


def _attempts(past: PastIncident) -> tuple[Rung, ...]:
    """Return the rungs that an incident used up.

    A playbook that evicted and restarted without a rung was a retry: "crashes again after an eviction" leads
    to the rollback (ByteRobust section 5). An engineer's update or another size is no attempt to recover.
    """
    if past.rungs or past.incident_class in ON_PURPOSE:
        return past.rungs
    return (Rung.ROLLBACK,) if past.incident_class is IncidentClass.USER_CODE_ERROR else (Rung.RETRY,)


def _summary(
    fruitless: Sequence[PastIncident], history: Sequence[PastIncident], enough: int, seen: Circumstances
) -> str:
    other = sum(not same(past.signature, seen.signature) for past in history)
    beside = f"; {other} other failures are counted separately" if other else ""
    what = f" of {seen.signature.description}" if seen.signature.what else ""
    if not fruitless:
        return f"no earlier incident{what} without progress ({enough} new steps){beside}"
    listed = ", ".join(f"{past.incident_class.value} in epoch {past.epoch}" for past in fruitless)
    return f"{len(fruitless)} earlier{what} without progress ({enough} new steps): {listed}{beside}"


def _suspect_data(fruitless: Sequence[PastIncident], now: Signature, again: int) -> str:
    """Return why the data is a suspect: the same failure came after the same step again; empty: it is none."""
    times = 1 + again + sum(same_step(past.signature, now) for past in fruitless)
    if times < 2 or now.from_outside or not now.position.step or now.what in _OF_NO_DATA:
        return ""
    return (
        f"{now.description} came after step {now.position.step} {times} times: the data that is read there is a "
        "suspect too"
    )

"""Detection of a saved state that leads to the same failure again and again though its bytes are intact.

A state whose digest is right may still contain the cause of a failure: a weight that overflows, a batch that no code
can read. Restored again, it fails again (44 identical restart loops, in a public report on Megatron). So a state that
led to *the same* failure within a few steps of two restores is left behind, with the states saved on the way to that
failure, and an older one is taken; and so on down the list, bounded. Broken numbers may show in other ways each time
(NaN, then a crash in a kernel): other failures count together, after one restore more.

These do not count: a failure that came later than those few steps; kills from outside; a service outside, such as the
store itself, that failed; one that a diagnosis blamed on a machine. A state that once led beyond those few steps is
never marked.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.models.alert import Alert, AlertKind, IncidentClass
from holdfast.models.base import Frozen
from holdfast.policies.classify import services, usage_errors
from holdfast.policies.classify.roots import separate
from holdfast.policies.classify.signature import FROM_OUTSIDE
from holdfast.policies.config.policy import PoisonedPolicy
from holdfast.policies.counted import counted

_OF_STATES = frozenset(
    {
        IncidentClass.JOB_CRASH,
        IncidentClass.NAN_LOSS,
        IncidentClass.SILENT_CORRUPTION,
        IncidentClass.USER_CODE_ERROR,
    }
)


class EpochRun(Frozen):
    """One epoch: its first state, the progress it made, and how it ended."""

    epoch: int
    start_step: int
    """The step that it restored; 0: from scratch."""
    reached: int
    """Newest step that it completed; ``start_step`` when none."""
    failure: str = ""
    """How it ended (:func:`failure`); empty: well, not yet, or in a way that is no evidence about its state."""


class LeftBehind(Frozen):
    """A state that must not be restored again, and the states saved after it until now."""

    step: int
    to_epoch: int
    """States of that step and later ones, saved by this epoch or earlier ones."""
    why: str


class StateFinding(Frozen):
    """Evidence of the history about the state that the newest epoch began with."""

    leave: LeftBehind | None = None
    once_more: str = ""
    """It led to the same failure, but not often enough: why it is to be restored once more."""
    spent: str = ""
    """It led to the same failure often enough, and too many were left behind already."""


def failure(incident_class: IncidentClass, alerts: Sequence[Alert], evicted: bool) -> str:
    """Describe how an epoch ended: equal descriptions are the same failure; empty when it blames no state.

    Args:
        incident_class: of the incident that ended it.
        alerts: of that epoch.
        evicted: a machine was taken out for it.
    """
    if evicted or incident_class not in _OF_STATES:
        return ""
    for kind, state in ((AlertKind.NON_FINITE, "not finite"), (AlertKind.METRIC_JUMP, "jump")):
        if numbers := sorted({str(a.evidence.get("metric", "loss")) for a in alerts if a.kind is kind}):
            return f"{numbers[-1]} {state}"
    roots = [alert for alert in separate(alerts).roots if not alert.evidence.get("unloadable")]
    if not roots or usage_errors.find(roots, ranks=2) or usage_errors.refusal(roots):
        return ""
    return _how(roots[0])


def _how(root: Alert) -> str:
    evidence = root.evidence
    if services.failed_it(root):
        return ""
    if sign := str(evidence.get("signal") or ""):
        return "" if sign in FROM_OUTSIDE else _with_cause(sign, root)
    if kind := str(evidence.get("error_type") or ""):
        return _with_cause(kind, root)
    return f"exit status {evidence['exit_code']}" if evidence.get("exit_code") else ""


def _with_cause(what: str, root: Alert) -> str:
    cause = root.evidence.get("pattern") or root.evidence.get("cause")
    return f"{what} ({cause})" if cause else what


def find(runs: Sequence[EpochRun], limits: PoisonedPolicy) -> StateFinding:
    """Judge the state that the newest of ``runs`` (oldest first, of one submission) began with."""
    if not runs or not runs[-1].failure or not runs[-1].start_step:
        return StateFinding()
    newest = runs[-1]
    stretch = _since_new_ground(runs, limits.within_steps)
    failures = _failures_of(stretch, newest.start_step, limits.within_steps)
    if newest.failure not in failures or _led_beyond(runs, newest.start_step, limits.within_steps):
        return StateFinding()
    times = failures.count(newest.failure)
    which = f"the same failure ({newest.failure})"
    if times < limits.restores < len(failures):
        times, which = len(failures), f"failures ({', '.join(dict.fromkeys(failures))})"
    what = (
        f"step {newest.start_step} led to {which} within {limits.within_steps} steps of "
        f"{counted(times, 'restore', 'restores')}"
    )
    if not _enough(failures, newest.failure, limits):
        return StateFinding(once_more=f"{what}: restored once more before it is abandoned")
    before = _left_before(stretch, newest, limits)
    if len(before) >= limits.most:
        steps = ", ".join(map(str, before))
        return StateFinding(spent=f"{what}; {len(before)} states were abandoned already (steps {steps})")
    why = f"{what}: abandoned, an older state is used ({len(before) + 1} of at most {limits.most})"
    return StateFinding(leave=LeftBehind(step=newest.start_step, to_epoch=newest.epoch, why=why))


def _since_new_ground(runs: Sequence[EpochRun], within: int) -> Sequence[EpochRun]:
    """Return the runs after the newest one that came well beyond all before it."""
    furthest, begin = runs[0].reached, 0
    for index, run in enumerate(runs[1:], 1):
        if run.reached > furthest + within:
            begin = index
        furthest = max(furthest, run.reached)
    return runs[begin:]


def _failures_of(runs: Sequence[EpochRun], step: int, within: int) -> list[str]:
    """Return how epochs that began with the state of ``step`` failed soon."""
    soon = (run for run in runs if run.start_step == step and run.reached - step <= within)
    return [run.failure for run in soon if run.failure]


def _enough(failures: Sequence[str], failure: str, limits: PoisonedPolicy) -> bool:
    return failures.count(failure) >= limits.restores or len(failures) > limits.restores


def _led_beyond(runs: Sequence[EpochRun], step: int, within: int) -> bool:
    return any(run.start_step == step and run.reached - step > within for run in runs)


def _left_before(stretch: Sequence[EpochRun], newest: EpochRun, limits: PoisonedPolicy) -> list[int]:
    """Return the other steps left behind for this failure since the job last made new ground, newest first."""
    steps = {run.start_step for run in stretch if run.start_step} - {newest.start_step}
    within = limits.within_steps
    return sorted(
        (
            step
            for step in steps
            if _enough(_failures_of(stretch, step, within), newest.failure, limits)
            and not _led_beyond(stretch, step, within)
        ),
        reverse=True,
    )

"""The retry of an incident that met a limit, and the message about it. No wait is for ever."""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.models.alert import BESIDE_TRAINING, IncidentClass
from holdfast.models.base import Frozen
from holdfast.models.job import JobState
from holdfast.models.missing import Missing
from holdfast.models.wait import Wait
from holdfast.policies.config.policy import AgainPolicy
from holdfast.policies.counted import counted

_STOPPED = "the job stands still and keeps its machines"
_NEEDS: Mapping[Missing, tuple[str, str]] = {
    Missing.STANDBY: (
        "a machine: one that registers or is released is taken at once",
        "`holdfast release MACHINE` brings a repaired one back, the deployment `resize-standby-pool` asks for more",
    ),
    Missing.APPROVAL: (
        "a person's yes, or the alert's end: each is acted on at once",
        "`holdfast approve {incident}` evicts after all; `holdfast resume {job}` starts on the machines it has",
    ),
    Missing.EVICTIONS: (
        "a look at why so many machines are at fault",
        "`holdfast evict MACHINE --reason WHY` takes one out all the same, and a standby its place; `holdfast resume "
        "{job}` starts on the machines it has, if they answer",
    ),
    Missing.CONTACT: (
        "the network between them and the playbook worker: the next attempt starts when they answer again",
        "`holdfast resume {job}` tries it now",
    ),
    Missing.STATE: (
        "a saved state: tried at once when a machine of the job comes back",
        "`holdfast checkpoints list {job}` shows what is left; `holdfast resume {job}` goes on with `--step N` from "
        "a step of it, with `--from-scratch` from zero",
    ),
    Missing.SERVICE: (
        "what all machines share to work again; an alert about it that is over is acted on at once",
        "`holdfast resume {job}` tries it now",
    ),
    Missing.RUNS: (
        "runs of its playbook that come to their end: the Prefect UI shows who or what ended the last ones (a person, "
        "an automation, a worker that died)",
        "`holdfast resume {job}` starts it without a playbook, on the machines that it has; `holdfast stop {job}` "
        "frees its machines",
    ),
    Missing.CHANGE: (
        "another version of the code, which is taken at once (`holdfast update {job}`), or a cause that goes away",
        "`holdfast resume {job}` tries it now and starts a fresh ladder; `holdfast stop {job}` frees its machines",
    ),
}
"""The need, and a person's options."""


RUNS_ON = frozenset({IncidentClass.FAIL_SLOW, IncidentClass.SILENT_CORRUPTION, IncidentClass.SCALE_JOB})
"""Classes whose jobs train: slow, perhaps wrongly, or at another size than asked for. They are not stopped for an act
that is forbidden then."""


_UNTOUCHED = frozenset({JobState.RUNNING, JobState.SCALED_TO_ZERO})
"""States of jobs that an incident which waits left as they were: one at zero may lack machines for another size."""


def beside(incident_class: IncidentClass, job_state: JobState) -> bool:
    """Return whether the job trains on whatever comes of the incident.

    A planned move that has begun its switch has stopped the ranks: it ends as a recovery does.
    """
    switching = incident_class is IncidentClass.PLANNED_MOVE and job_state is JobState.RECOVERING
    return incident_class in BESIDE_TRAINING and not switching


class WaitFacts(Frozen):
    """The gateway's present knowledge about an incident that waits."""

    now: float
    job_state: JobState
    lacking: int = 0
    """Slots of the job without a machine that serves it."""
    standbys: int = 0
    silent: bool = False
    """Whether some machine of the job is not heard."""
    back: str = ""
    """A machine of the job that registered since the wait began; where an eviction was not allowed, an accused one."""
    new_version: str = ""
    """A code version that waits for the job's next start."""
    resolved: str = ""
    """An alert of the incident that was reported as over since it was opened."""
    at_fault: str = ""
    """A machine of the job that was reported as surely at fault since the wait began."""


class Outlook(Frozen):
    """The time of the next attempt, and the message."""

    wait: Wait
    message: str


def may_run_on(incident_class: IncidentClass, missing: Missing, rounds: int, *, unable: bool = False) -> bool:
    """Return whether the job may be started on the machines that it has, although a limit forbids the intended act.

    At once where it trained when the incident came, and where the answer to a question is no: unless one of its
    machines is ``unable`` to run ranks. After a wait always: whatever the obstacle, a job that can run is not left
    standing.
    """
    if incident_class in RUNS_ON or rounds:
        return True
    return missing is Missing.APPROVAL and not unable


def pause_s(times: int, policy: AgainPolicy) -> float:
    """Return the pause before the attempt after ``times`` waits: longer each time, up to the longest."""
    return float(min(policy.longest_s, policy.pause_s * policy.factor ** min(times - 1, 64)))


def times(missing: Missing, own: Wait | None, earlier: Wait | None, now: float, policy: AgainPolicy) -> int:
    """Return the number of the wait that begins, by which its pause grows.

    A job that trains meanwhile has a new incident after each wait: where the same is missing again soon, they count on.

    Args:
        missing: what is.
        own: the newest wait of the incident itself.
        earlier: of an earlier incident of the job's class, in which the job trained; None: it does not train, or none.
        now: Unix seconds.
        policy: how long the pauses are.
    """
    if own is not None:
        return own.times + 1
    lasts = earlier is not None and earlier.missing is missing and now - earlier.next_at <= policy.longest_s
    return earlier.times + 1 if earlier is not None and lasts else 1


def outlook(wait: Wait, again_at: float | None, policy: AgainPolicy, *, at_zero: bool = False) -> Outlook:
    """Set the time of the next attempt, and report what is needed, what people can do, and what happens else.

    Args:
        wait: without its time.
        again_at: when the missing resource is surely there; None: not known. A job that stands is not left so until
            then: after a pause it is started on the machines that it has.
        policy: how long the pauses are.
        at_zero: the job is scaled to zero, and lacks machines for the size that was asked for.
    """
    longest = wait.since + pause_s(wait.times, policy)
    next_at = longest if again_at is None else min(longest, max(wait.since, again_at))
    dated = wait.model_copy(update={"next_at": next_at})
    needs, options = (text.format(incident=wait.incident_id, job=wait.job) for text in _NEEDS[wait.missing])
    goes_on = "the job runs on" if wait.runs_on else _STOPPED
    message = (
        f"Needs {needs}. You can: {options}. Else it is tried again in {duration(next_at - wait.since)}; "
        f"{'the job stays at zero' if at_zero else goes_on} meanwhile"
    )
    return Outlook(wait=dated, message=message)


_NEEDS_THAT = ". Needs "
_RESUMED = ". A person resumed the job since:"


def resumed(summary: str, epoch: int) -> str:
    """Return the summary of an incident that waited, once a person had its job started: the wait is no more."""
    return f"{summary.partition(_NEEDS_THAT)[0]}{_RESUMED} epoch {epoch} was started"


def same_end(recorded: str, again: str) -> bool:
    """Return whether two summaries agree; a person may have resumed the job since the first was recorded."""
    before, resumed_since, _ = recorded.partition(_RESUMED)
    return before == again.partition(_NEEDS_THAT)[0] if resumed_since else recorded == again


def due(wait: Wait, seen: WaitFacts) -> str:
    """Return why it is to be retried now; empty: not yet.

    A resource that appeared counts a moment after the wait began, longer each time: it may not be the missing one.
    """
    if seen.job_state not in (_UNTOUCHED if wait.runs_on else {JobState.FAILED}):
        return ""
    waited_s = seen.now - wait.since
    appeared = _appeared(wait, seen)
    if appeared and waited_s >= min(2.0 ** min(wait.times - 1, 64), wait.next_at - wait.since):
        return f"{appeared} after {duration(waited_s)}"
    return f"tried again after {duration(waited_s)}" if seen.now >= wait.next_at else ""


def _appeared(wait: Wait, seen: WaitFacts) -> str:
    """Return, in words, what was missing and is there now; empty: nothing."""
    if seen.new_version:
        return f"code version {seen.new_version} came"
    enough = max(1, seen.lacking) <= seen.standbys
    found = {
        Missing.STANDBY: counted(seen.standbys, "machine stands by", "machines stand by") if enough else "",
        Missing.CONTACT: "" if seen.silent else "all machines of the job answer again",
        Missing.STATE: f"machine {seen.back} is back" if seen.back else "",
        Missing.APPROVAL: _no_question_left(seen),
        Missing.EVICTIONS: _no_question_left(seen)
        or ("a machine was evicted by hand" if seen.lacking else ""),
        Missing.SERVICE: _resolved(seen),
        Missing.CHANGE: f"machine {seen.at_fault} was found at fault" if seen.at_fault else "",
        Missing.RUNS: f"machine {seen.at_fault} was found at fault" if seen.at_fault else "",
    }
    return found.get(wait.missing, "")


def _no_question_left(seen: WaitFacts) -> str:
    """Return why the eviction that was not done may be needless by now; empty: it is not known to be."""
    return _resolved(seen) or (f"machine {seen.back} restarted" if seen.back else "")


def _resolved(seen: WaitFacts) -> str:
    return f"{seen.resolved} was resolved" if seen.resolved else ""


def duration(seconds: float) -> str:
    """Return a duration in words, as coarse as people need it."""
    if seconds < 120:
        return f"{max(0.0, seconds):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"

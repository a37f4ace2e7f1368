"""Decide whether a playbook's run is in order, or the incident needs its next attempt. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from holdfast.deployments.gateway.runs.flow_runs import PlaybookRun, RunPhase
from holdfast.errors import RefusedError
from holdfast.models.alert import Incident, IncidentClass
from holdfast.models.history import Action, ActionState, CodeVersion
from holdfast.models.job import WAS_STOPPED, Job, JobState
from holdfast.policies.config.policy import GatewayPolicy
from holdfast.policies.counted import counted
from holdfast.policies.escalate import overtake

DEAD_AFTER_S = 2.0
"""A worker reports the death of a run's process much faster than this."""
BUSY_FACTOR = 5
"""Factor on the silence limit of a run whose process is alive, or that has begun an act."""
SILENT_ATTEMPTS = 2
"""Runs of a playbook of another package that may go silent: each has the job stand for minutes."""
PATIENCE_DOUBLINGS = 4
"""Most times that the wait for a run that is not started doubles from one run to the next: 15 s becomes 4 min."""


class Lapse(StrEnum):
    """The kinds of runs that are not in order; their values are labels of a metric."""

    ABSENT = "not_there"
    ENDED = "ended"
    UNSTARTED = "no_worker"
    DEAD = "process_is_gone"
    SILENT = "silent"
    UNRESUMED = "not_resumed"
    OFFLINE = "prefect_is_away"


@dataclass(frozen=True)
class Again:
    """Reason for another attempt."""

    lapse: Lapse
    words: str


def why_again(
    run: PlaybookRun | None, incident: Incident, actions: Sequence[Action], now: float, policy: GatewayPolicy
) -> Again | None:
    """Return why ``incident`` needs another attempt; None while its run is in order.

    The caller has seen the incident open after ``run`` was read.
    """
    if run is None:
        return Again(Lapse.ABSENT, "its run is not there")
    if run.phase in (RunPhase.FAILED, RunPhase.ENDED):
        message = f": {run.message}" if run.phase is RunPhase.FAILED and run.message else ""
        return Again(Lapse.ENDED, f"its run ended ({run.state}{message}) and the incident is open")
    if run.phase is RunPhase.WAITING and now - run.since > patience_s(incident, actions, policy):
        return Again(
            Lapse.UNSTARTED, f"no worker has started its run for {now - run.since:.0f} s ({run.state})"
        )
    if run.phase is RunPhase.SUSPENDED:
        return _unresumed(run, actions, now)
    return _stalled(run, actions, now, policy) if run.phase is RunPhase.RUNNING else None


def _unresumed(run: PlaybookRun, actions: Sequence[Action], now: float) -> Again | None:
    """Return why a suspended run can go on no more; None while it can, or asks a question that has a deadline."""
    asks = any(action.kind == "approve" and action.state is ActionState.INTENT for action in actions)
    if asks or run.resumable_s is None or now - run.since <= run.resumable_s:
        return None
    message = f": {run.message}" if run.message else ""
    return Again(
        Lapse.UNRESUMED, f"its run was not resumed for {now - run.since:.0f} s ({run.state}{message})"
    )


def _stalled(run: PlaybookRun, actions: Sequence[Action], now: float, policy: GatewayPolicy) -> Again | None:
    if run.alive is False and now - run.since > DEAD_AFTER_S:
        return Again(Lapse.DEAD, f"its run is {run.state}, and its process is gone")
    last = max([run.since, *(action.done_at or action.begun_at for action in actions)])
    acting = any(action.state is ActionState.INTENT for action in actions)
    limit = policy.silent_after_s * (BUSY_FACTOR if run.alive or acting else 1)
    if now - last <= limit:
        return None
    return Again(Lapse.SILENT, f"its run has been silent for {now - last:.0f} s (limit {limit:.0f} s)")


def attempts_spent(incident: Incident, actions: Sequence[Action]) -> int:
    """Count attempts since it was last taken up whose playbook began; a run that came to no step does not count."""
    again = [index for index, action in enumerate(actions) if action.kind == "again"]
    if again:
        return sum(action.kind == "attempt" for action in actions[again[-1] :])
    return int(incident.first_task_at is not None) + sum(action.kind == "attempt" for action in actions)


def why_alone(run: PlaybookRun | None, incident: Incident, actions: Sequence[Action]) -> str:
    """Return why the next attempt is to run without Prefect; empty: it is not.

    A run that raised before it took the incident up is likely one of a worker that cannot run playbooks: started
    without `HOLDFAST_HOME`, or without this package. The next run would end like it. One that was refused (another run
    acts on the job) reached the ledger: the next one may come in its turn.
    """
    if run is None or not run.raised or attempts_spent(incident, actions):
        return ""
    if run.message.startswith(RefusedError.__name__):
        return ""
    return (
        f"its run failed before its first step ({run.message}): can the worker that took it run playbooks, "
        "as it was started, with its environment?"
    )


def attempts_allowed(incident: Incident, lapse: Lapse, limit: int) -> int:
    """Return after how many attempts an incident is given up, when the run of the present one is not in order."""
    hangs = lapse is Lapse.SILENT and overtake.of_a_package(incident)
    return min(limit, SILENT_ATTEMPTS) if hangs else limit


def patience_s(incident: Incident, actions: Sequence[Action], policy: GatewayPolicy) -> float:
    """Return how long the present attempt's run may wait to be started: twice as long after each that never was.

    Else what is slow to start for a good reason (a pod whose image is pulled) would never come to begin.
    """
    begun = int(incident.first_task_at is not None) + sum(action.kind == "attempt" for action in actions)
    unbegun = max(0, incident.attempt - 1 - begun)
    return policy.pending_after_s * float(2 ** min(unbegun, PATIENCE_DOUBLINGS))


def backoff_s(attempt: int) -> float:
    """Pause before the attempt after ``attempt``: none before the second, then 1, 2, 4, 8 s."""
    return 0.0 if attempt < 2 else float(min(2 ** (attempt - 2), 8))


def why_moot(
    incident: Incident, job: Job, versions: Sequence[CodeVersion], others: Sequence[Incident] = ()
) -> str:
    """Return why an incident that waited for another one has nothing left to do; empty when it has.

    Args:
        incident: with its alerts: they name the version or the size that is asked for.
        job: as it is now.
        versions: of its code.
        others: open incidents of the job, newest first, with their alerts.
    """
    if job.state is not JobState.RUNNING:
        return WAS_STOPPED if job.state is JobState.STOPPED else ""
    if incident.incident_class is IncidentClass.CODE_UPDATE:
        return _why_no_update(incident, job, versions, others)
    if incident.epoch >= job.epoch:
        return ""
    if incident.incident_class is IncidentClass.SCALE_JOB:
        return (
            f"it has {counted(job.spec.machines, 'machine', 'machines')} already"
            if _has_its_size(incident, job)
            else ""
        )
    if incident.machine and incident.machine in job.machines:
        return ""
    return f"the job runs again since epoch {job.epoch}"


def _has_its_size(incident: Incident, job: Job) -> bool:
    """Return whether the job has as many machines as it is asked to have, and keeps them if a person asked for it."""
    grown = any(alert.evidence.get("grown") for alert in incident.alerts)
    keeps = grown or job.spec.elastic is None or job.spec.elastic.want == incident.machines_asked
    return keeps and incident.machines_asked == job.spec.machines


def _newer(incident: Incident, others: Sequence[Incident]) -> str:
    """Return the other version that the newest update names, where it was shipped after this one; empty: none was."""
    updates = [each for each in others if each.incident_class is IncidentClass.CODE_UPDATE]
    if not updates or updates[0].opened_at <= incident.opened_at:
        return ""
    newest = updates[0].version_asked
    return "" if newest is None or newest == incident.version_asked else newest


def _why_no_update(
    incident: Incident, job: Job, versions: Sequence[CodeVersion], others: Sequence[Incident]
) -> str:
    if newer := _newer(incident, others):
        return f"version {newer} was shipped after it"
    if incident.epoch >= job.epoch:
        return ""
    wanted = incident.version_asked
    if wanted == job.code_version:
        return f"epoch {job.epoch} took version {wanted} along"
    bad = next((known for known in versions if known.version == wanted and known.bad), None)
    return f"version {wanted} is bad: {bad.bad_reason}" if bad else ""

"""The story itself: break things one after the other, each only once the job has recovered from the last."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from holdfast.demo.faults import ScheduledFault
from holdfast.demo.observer import JobFacts, Observer
from holdfast.errors import RecoveryError
from holdfast.models.alert import Incident, IncidentState
from holdfast.models.job import JobState

CALM_STEPS = 8
"""New steps that the job makes between a recovery and the next fault."""
CALM_DEADLINE_S = 60.0
# A detector's clock may be a little behind ours.
SLACK_S = 0.5

Inject = Callable[[str, str, int | None], float]
"""(fault, machine, rank) -> when, Unix seconds."""


@dataclass(frozen=True)
class AnsweredFault:
    """A fault that was injected, and the incident that answered it (None: not yet, or never)."""

    fault: ScheduledFault
    machine: str
    rank: int | None
    at: float
    incident_id: str | None = None


class Story:
    """Plays ``schedule`` against one job. ``injected`` grows as it goes, and is good after a failure too."""

    def __init__(
        self,
        observer: Observer,
        schedule: Sequence[ScheduledFault],
        inject: Inject,
        ranks_per_machine: int,
        say: Callable[[str], None],
    ) -> None:
        self.injected: list[AnsweredFault] = []
        self._observer, self._schedule, self._inject = observer, schedule, inject
        self._ranks_per_machine, self._say = ranks_per_machine, say

    def play(self) -> None:
        """Inject every fault, and see each recovered.

        Raises:
            RecoveryError: one was not recovered in time; the message names it and the present state.
        """
        for fault in self._schedule:
            self._chapter(fault)

    def _chapter(self, fault: ScheduledFault) -> None:
        facts = self._calm(fault)
        machine = facts.machines[fault.slot]
        rank = None if fault.local_rank is None else fault.slot * self._ranks_per_machine + fault.local_rank
        where = machine if rank is None else f"{machine}, rank {rank}"
        self._say(f"step {facts.step:>4}  {fault.title} ({fault.name} on {where})")
        at = self._inject(fault.name, machine, rank)
        self.injected.append(AnsweredFault(fault, machine, rank, at))

        def repaired(facts: JobFacts) -> Incident | None:
            if seen := answers(facts, fault, at):
                self.injected[-1] = replace(self.injected[-1], incident_id=seen[0].id)
            return recovered(facts, fault, at)

        incident = self._observer.wait(f"recovery from {fault.name}", repaired, fault.deadline_s)
        took = (incident.recovered_at or incident.detected_at) - at
        self._say(f"           {incident.incident_class.value}: recovered after {took:.1f} s")

    def _calm(self, fault: ScheduledFault) -> JobFacts:
        """Wait until the job runs, has made enough new steps, and the pool has what the fault will need."""
        base = self._observer.look().step

        def ready(facts: JobFacts) -> JobFacts | None:
            if facts.state == JobState.DONE:
                raise RecoveryError(
                    f"the job ended before {fault.name} could be injected: give it more steps."
                )
            running = facts.state == JobState.RUNNING and facts.step >= base + CALM_STEPS
            closed = all(incident.state is not IncidentState.OPEN for incident in facts.incidents)
            supplied = facts.standbys > 0 or not fault.costs_machine
            return facts if running and closed and supplied else None

        return self._observer.wait(f"calm before {fault.name}", ready, CALM_DEADLINE_S)


def answers(facts: JobFacts, fault: ScheduledFault, at: float) -> list[Incident]:
    """Return the incidents of the class that ``fault`` should have, opened since ``at``."""
    return [row for row in _since(facts, at) if row.incident_class is fault.expected]


def recovered(facts: JobFacts, fault: ScheduledFault, at: float) -> Incident | None:
    """Return the recovered incident of the expected class that was opened since ``at``; None while any is open."""
    if any(incident.state is IncidentState.OPEN for incident in _since(facts, at)):
        return None
    return next((row for row in answers(facts, fault, at) if row.recovered_at), None)


def _since(facts: JobFacts, at: float) -> list[Incident]:
    return [incident for incident in facts.incidents if incident.opened_at >= at - SLACK_S]

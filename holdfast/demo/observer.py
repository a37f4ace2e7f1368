"""Looks at one job through the gateway, keeps the timeline, and waits for conditions with deadlines."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from holdfast.errors import RecoveryError, UnavailableError
from holdfast.models.alert import Incident, IncidentState
from holdfast.models.job import JobState
from holdfast.models.machine import MachineState

Answer = TypeVar("Answer")
POLL_S = 0.2
# How long the gateway may be silent before the demo gives up.
PATIENCE_S = 15.0
_DEAD_ENDS = {JobState.FAILED, JobState.STOPPED}


class JobSource(Protocol):
    """The part of the gateway's client that is needed here."""

    def status(self) -> dict[str, Any]:
        """Return the status, as ``GET /v1/status`` does."""
        ...

    def incidents(self, job: str | None = None, state: str | None = None) -> list[Incident]:
        """Return a job's incidents, newest first."""
        ...


@dataclass(frozen=True)
class JobFacts:
    """A job at one moment."""

    at: float
    state: str
    epoch: int
    step: int
    machines: tuple[str, ...]
    standbys: int
    incidents: tuple[Incident, ...]
    """All of the job so far, oldest first."""


@dataclass(frozen=True)
class Sample:
    """One point of the timeline."""

    at: float
    step: int
    epoch: int
    state: str


class Observer:
    """Follows ``job``. ``show`` is called with the facts of every look."""

    def __init__(
        self,
        source: JobSource,
        job: str,
        show: Callable[[JobFacts], None] = lambda _: None,
        now: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.job = job
        self.samples: list[Sample] = []
        self._source, self._show, self._now, self._sleep = source, show, now, sleep

    def look(self) -> JobFacts:
        """Return the job now.

        Raises:
            UnavailableError: the gateway does not answer.
        """
        status = self._source.status()
        row: dict[str, Any] = next((row for row in status["jobs"] if row["name"] == self.job), {})
        incidents = self._source.incidents(self.job) if row else []
        facts = JobFacts(
            at=self._now(),
            state=str(row.get("state", "")),
            epoch=int(row.get("epoch") or 0),
            step=int(row.get("step") or 0),
            machines=tuple(row.get("machines", ())),
            standbys=sum(machine["state"] == MachineState.STANDBY for machine in status["machines"]),
            incidents=tuple(sorted(incidents, key=lambda incident: incident.opened_at)),
        )
        self._keep(facts)
        self._show(facts)
        return facts

    def wait(self, what: str, condition: Callable[[JobFacts], Answer | None], deadline_s: float) -> Answer:
        """Look until ``condition`` answers something true, and return that.

        Raises:
            RecoveryError: it did not within ``deadline_s``, the job ended badly, or an incident needs a human.
        """
        end = self._now() + deadline_s
        answered_at = self._now()
        while True:
            try:
                facts = self.look()
            except UnavailableError:
                if self._now() - answered_at > PATIENCE_S:
                    raise
            else:
                answered_at = facts.at
                if answer := condition(facts):
                    return answer
                _raise_on_dead_end(what, facts)
                if facts.at > end:
                    raise RecoveryError(
                        f"{what}: not within {deadline_s:.0f} s; job {self.job} is {facts.state} "
                        f"at step {facts.step}, epoch {facts.epoch}."
                    )
            self._sleep(POLL_S)

    def _keep(self, facts: JobFacts) -> None:
        sample = Sample(facts.at, facts.step, facts.epoch, facts.state)
        # Between changes only the first and the last point matter for a line.
        if len(self.samples) >= 2 and _same(self.samples[-1], sample) and _same(self.samples[-2], sample):
            self.samples[-1] = sample
        else:
            self.samples.append(sample)


def _same(one: Sample, other: Sample) -> bool:
    return (one.step, one.epoch, one.state) == (other.step, other.epoch, other.state)


def _raise_on_dead_end(what: str, facts: JobFacts) -> None:
    stuck = [row.id for row in facts.incidents if row.state is IncidentState.NEEDS_HUMAN]
    if stuck:
        raise RecoveryError(f"{what}: incident {stuck[0]} needs a human (`holdfast incident {stuck[0]}`).")
    if facts.state in _DEAD_ENDS:
        raise RecoveryError(f"{what}: the job {facts.state} at step {facts.step}.")

"""The newest steps of each machine of a job by phase, kept in memory for the status page.

Bounded: so many steps per machine of each job that the ledger knows, of its newest epoch; phase names are shared.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import NamedTuple

from holdfast.models.agent import Heartbeat
from holdfast.models.job import Job

STEPS = 16
MAX_NAMES = 32


class Timed(NamedTuple):
    """One step of a machine's lowest rank."""

    step: int
    at: float
    """When it was complete, on the gateway's clock."""
    s: float
    phases: tuple[float, ...]
    """Seconds, in the order of :attr:`JobTimes.names`; later names may be missing."""


class JobTimes:
    """Step times of one epoch of a job."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.names: list[str] = []
        self.machines: dict[str, deque[Timed]] = {}


class AllStepTimes:
    """All of them. One event loop uses it."""

    def __init__(self) -> None:
        self._jobs: dict[str, JobTimes] = {}

    def observe(self, beat: Heartbeat, jobs: Mapping[str, Job], now: float) -> None:
        """Take the step times of an admitted machine's heartbeat.

        Of its clock only differences count: a step is as old as the machine reports, at most a minute.
        """
        # Of those that are kept, not of all that there ever were: it is done for each heartbeat.
        for gone in [name for name in self._jobs if name not in jobs]:
            del self._jobs[gone]
        for run in beat.jobs:
            job = jobs.get(run.job)
            if job is None or not run.times or beat.machine not in job.machines:
                continue
            known = self._jobs.get(run.job)
            if known is None or run.epoch > known.epoch:
                known = self._jobs[run.job] = JobTimes(run.epoch)
            if run.epoch < known.epoch:
                continue
            steps = known.machines.setdefault(beat.machine, deque(maxlen=STEPS))
            newest = steps[-1].step if steps else 0
            for one in run.times:
                if one.step > newest:
                    age = min(max(0.0, beat.at - one.at), 60.0)
                    steps.append(Timed(one.step, now - age, one.s, _ordered(known.names, one.phases)))

    def of(self, job: str) -> JobTimes | None:
        """Return the known step times of a job; None when there are none."""
        return self._jobs.get(job)


def _ordered(names: list[str], phases: Mapping[str, float]) -> tuple[float, ...]:
    for name in phases:
        if name not in names and len(names) < MAX_NAMES:
            names.append(name)
    return tuple(phases.get(name, 0.0) for name in names)

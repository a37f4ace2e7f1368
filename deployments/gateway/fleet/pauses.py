"""How long each job paused and started before: across its epochs, since it was submitted.

Bounded: a few numbers for each job that the ledger knows.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from holdfast.models.agent import RankState
from holdfast.models.history import Epoch
from holdfast.models.job import Job
from holdfast.policies.detect import starts
from holdfast.policies.detect.hang_facts import Learned

MOST_PHASES = 64


@dataclass
class _Known:
    submitted_at: float
    gap_s: float = 0.0
    phase_s: dict[str, float] = field(default_factory=dict)
    starts_of: int = 0
    """The epoch before which starts were looked up; 0: they were not."""
    start_s: float = 0.0
    reports: bool = False
    """A rank of it has a Session."""


class KnownPauses:
    """All jobs. One event loop uses it."""

    def __init__(self) -> None:
        self._jobs: dict[str, _Known] = {}

    def observe(
        self,
        job: Job,
        before: RankState | None,
        now: RankState,
        declared: Collection[str],
        woke_at: float = 0.0,
    ) -> None:
        """Take two states of one rank, one heartbeat apart: a step that ended a pause shows how long the pause was.

        Until ``woke_at`` the rank's machine stood still.
        """
        if now.reports or now.steps_done:
            self._of(job).reports = True
        if before is None or before.steps_done == 0 or now.steps_done != before.steps_done + 1:
            return
        if before.paused or now.paused:
            return
        known, pause_s = self._of(job), now.step_at - max(before.step_at, woke_at)
        phase = before.activity if before.activity in declared else now.activity
        if phase not in declared:
            known.gap_s = max(known.gap_s, pause_s)
        elif phase in known.phase_s or len(known.phase_s) < MOST_PHASES:
            known.phase_s[phase] = max(known.phase_s.get(phase, 0.0), pause_s)

    def gap_s(self, job: Job) -> float:
        """Return the job's longest undeclared pause between two steps."""
        return self._of(job).gap_s

    def has_starts(self, job: Job) -> bool:
        """Return whether the job's starts before the present epoch were looked up."""
        return self._of(job).starts_of == job.epoch

    def take_starts(self, job: Job, epochs: Sequence[Epoch]) -> None:
        """Take the job's epochs, as the ledger has them."""
        known = self._of(job)
        known.start_s, known.starts_of = starts.longest_s(epochs, job.submitted_at), job.epoch

    def learned(self, job: Job) -> Learned:
        """Return the learned durations for the hang vote."""
        known = self._of(job)
        return Learned(start_s=known.start_s, phase_s=dict(known.phase_s), reports=known.reports)

    def keep(self, jobs: Collection[str]) -> None:
        """Forget all other jobs."""
        self._jobs = {name: known for name, known in self._jobs.items() if name in jobs}

    def _of(self, job: Job) -> _Known:
        known = self._jobs.get(job.name)
        if known is None or known.submitted_at != job.submitted_at:
            known = self._jobs[job.name] = _Known(job.submitted_at)
        return known

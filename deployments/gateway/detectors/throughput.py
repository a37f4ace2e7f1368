"""Jobs that have become slow: each job's recent steps against its own earlier ones.

A decline that lasts is reported again, as seldom as incidents are tried again at most (``again.longest_s``): what was
held back while the job was left running comes up again.

Bounded: some hundred numbers per running job.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from holdfast.deployments.gateway.intake.correlate import Correlator
from holdfast.deployments.gateway.site import Site, log
from holdfast.errors import UnavailableError
from holdfast.models.agent import Heartbeat, StepMark
from holdfast.models.alert import Alert, AlertKind
from holdfast.models.job import Job, JobState
from holdfast.policies.config.thresholds import ThroughputLimits
from holdfast.policies.detect import throughput
from holdfast.policies.detect.throughput import Decline


class Series:
    """Numbers of steps: the recent ones, and those before them."""

    def __init__(self, limits: ThroughputLimits) -> None:
        self.recent: deque[float] = deque()
        self.baseline: deque[float] = deque(maxlen=limits.baseline)
        self._most = limits.recent
        self.declined_since: float | None = None
        """By a clock that is never set."""

    def add(self, value: float) -> None:
        """Take one step's number. While the job is slow its baseline stays what it was."""
        self.recent.append(value)
        if len(self.recent) > self._most:
            oldest = self.recent.popleft()
            if self.declined_since is None:
                self.baseline.append(oldest)


@dataclass
class _Pace:
    """One job as it runs now."""

    identity: tuple[object, ...]
    seconds: Series
    mfu: Series
    epoch: int = 0
    last_step: int = 0
    slow: dict[AlertKind, float] = field(default_factory=dict)
    """Declines that were reported, and when, by a clock that is never set."""


class Throughput:
    """Watches all running jobs through the heartbeats of the machine of rank 0."""

    def __init__(self, site: Site, correlator: Correlator) -> None:
        self._site = site
        self._correlator = correlator
        self._limits = site.policy.detect.throughput
        self._jobs: dict[str, _Pace] = {}

    def observe(self, beat: Heartbeat) -> None:
        """Take one heartbeat of an admitted machine."""
        for run in beat.jobs:
            job = self._site.fleet.jobs.get(run.job)
            if job is None or run.epoch != job.epoch or beat.machine != next(iter(job.machines), None):
                continue
            pace = self._pace(job)
            new = self._new(pace, run.epoch, run.marks)
            for mark in new:
                # A checkpoint's stall is no slowness of the step.
                pace.seconds.add(max(0.0, mark.s - mark.stall_s))
            reported = [rank.mfu for rank in run.ranks if rank.mfu is not None]
            if new and reported:
                pace.mfu.add(min(reported))

    async def tick(self) -> None:
        """Run one round."""
        jobs = self._site.fleet.jobs
        self._jobs = {name: pace for name, pace in self._jobs.items() if name in jobs}
        now = self._site.clock.now()
        due = [
            alert
            for name, pace in self._jobs.items()
            if jobs[name].state is JobState.RUNNING
            for alert in self._judge(jobs[name], pace, now, self._site.clock.monotonic())
        ]
        try:
            await self._correlator.accept_all(due)
        except UnavailableError:
            for alert in due:
                self._jobs[alert.job or ""].slow.pop(alert.kind, None)  # due again in the next round
            raise

    def _pace(self, job: Job) -> _Pace:
        # Other code, other machines: another pace is to be expected.
        identity = (job.submitted_at, job.code_version, len(job.machines))
        known = self._jobs.get(job.name)
        if known is None or known.identity != identity:
            known = self._jobs[job.name] = _Pace(identity, Series(self._limits), Series(self._limits))
        return known

    def _new(self, pace: _Pace, epoch: int, marks: Sequence[StepMark]) -> list[StepMark]:
        """Return the marks not seen before; without an epoch's first step, which compiles and connects."""
        if epoch != pace.epoch:
            pace.epoch, pace.last_step = epoch, marks[0].step if marks else 0
            for series in (pace.seconds, pace.mfu):
                series.recent.clear()
                series.declined_since = None
        new = [mark for mark in marks if mark.step > pace.last_step > 0]
        if marks:
            pace.last_step = max(pace.last_step, marks[-1].step)
        return new

    def _judge(self, job: Job, pace: _Pace, now: float, passed: float) -> list[Alert]:
        limits, again_s = self._limits, self._site.policy.again.longest_s
        found = [
            (AlertKind.THROUGHPUT_DECLINE, pace.seconds, throughput.slower, "s per step"),
            (AlertKind.MFU_DECLINE, pace.mfu, throughput.lower, "MFU"),
        ]
        alerts = []
        for kind, series, judge, unit in found:
            decline = judge(series.baseline, series.recent, limits)
            if decline is None:
                series.declined_since = None
                pace.slow.pop(kind, None)
                continue
            if series.declined_since is None:
                series.declined_since = passed
            lasted_s = passed - series.declined_since
            reported_at = pace.slow.get(kind)
            if lasted_s >= limits.lasting_s and (reported_at is None or passed - reported_at >= again_s):
                pace.slow[kind] = passed
                lasted = f"for {lasted_s:.0f} s"
                detail = f"{decline.value:.4g} {unit} {lasted}, before {decline.median:.4g}"
                log.warning("job %s: %s", job.name, detail)
                alerts.append(_alert(kind, job, decline, detail, now))
        return alerts


def _alert(kind: AlertKind, job: Job, decline: Decline, detail: str, now: float) -> Alert:
    return Alert(
        kind=kind,
        job=job.name,
        epoch=job.epoch,
        at=now,
        fingerprint=f"{kind}:{job.name}:{job.epoch}:{now:.3f}",
        evidence={**decline.model_dump(), "detail": detail},
    )

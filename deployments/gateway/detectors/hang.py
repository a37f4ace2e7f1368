"""Jobs without progress: keeps what the hang vote needs from heartbeats, and asks it.

Bounded: a few seconds of samples per living rank of the newest epoch.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from holdfast.deployments.gateway.detectors.stacks import StackHistory, StackReader
from holdfast.deployments.gateway.detectors.vitals import VitalSigns
from holdfast.deployments.gateway.fleet.pauses import KnownPauses
from holdfast.deployments.gateway.intake.correlate import Correlator
from holdfast.deployments.gateway.site import Site, log
from holdfast.models.agent import Heartbeat, RankState
from holdfast.models.alert import Alert, AlertKind
from holdfast.models.job import Job, JobState
from holdfast.policies.detect import hang
from holdfast.policies.detect.hang_facts import HangFacts, Learned, facts

Sample = TypeVar("Sample", bound=tuple[float, ...])
"""A time, and what was measured then."""
SAMPLE_S = 3.0
"""Processor use is taken over so long."""
LATE_S = 3.0
"""A heartbeat that is so much later than two intervals, and ..."""
LATE_FACTOR = 3
"""... than this x the interval before it, comes from a machine that stood still, or that was not heard."""
TOGETHER_S = 30.0
"""Standstills that begin within this time of the first late heartbeat excuse the same silence of a job."""
_SAMPLES_SHARE = 0.05
"""Least interval between two reads of the stacks, as a share of the silence."""
AGAIN_S = 5.0
"""Interval after which a lasting hang is reported again (its incident may have been closed meanwhile)."""


@dataclass
class _History:
    """One rank of one epoch."""

    epoch: int
    pid: int
    cpu: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=64))
    """(time, processor seconds), oldest first."""
    work: deque[tuple[float, float, float]] = field(default_factory=lambda: deque(maxlen=64))
    """(time, processor seconds of what it started, bytes read and written), where the agent looked at them."""
    longest_gap_s: float = 0.0
    stopped_since: float | None = None
    blocked_since: float | None = None
    last: RankState | None = None
    woke_at: float = 0.0
    """When the newest heartbeat came before which none had come for long."""
    excused_at: float = 0.0
    """The same of the newest one that the silence of the job is counted from."""

    def add(self, state: RankState, at: float, exempt: frozenset[str]) -> None:
        """Take the rank's state of a heartbeat made at ``at``."""
        self.cpu.append((at, state.cpu_s))
        _drop_older(self.cpu, at)
        if state.children_cpu_s or state.io_bytes:
            self.work.append((at, state.children_cpu_s, float(state.io_bytes)))
        else:
            self.work.clear()
        _drop_older(self.work, at)
        self.stopped_since = _since(self.stopped_since, state.process_state.startswith("T"), at)
        self.blocked_since = _since(self.blocked_since, state.process_state.startswith("D"), at)
        self._gap(state, exempt)
        self.last = state

    def work_before(self) -> tuple[float, float, float] | None:
        """Return the oldest sample of ``work``, if it is old enough to compare with; None when there is none yet."""
        return _to_compare_with(self.work)

    def earlier(self) -> tuple[float, float] | None:
        """Return the oldest sample, if it is old enough to compare with; None when there is none yet."""
        return _to_compare_with(self.cpu)

    def wake(self, state: RankState, at: float, late_s: float) -> float:
        """Return, before the heartbeat of ``at`` is taken, for how long machine or host stood still; 0: it is not late.

        That time is no hang, and no pause of the job. Once in a silence, so that heartbeats that are always late excuse
        none; not before the first step, for which there is time enough.
        """
        # A clock that was set forward looks like a late heartbeat; set back again, it would excuse all until that time.
        self.woke_at, self.excused_at = min(self.woke_at, at), min(self.excused_at, at)
        if len(self.cpu) < 2 or state.steps_done == 0 or state.step_at <= self.woke_at:
            return 0.0
        before, last = self.cpu[-2][0], self.cpu[-1][0]
        if at - last <= max(late_s, LATE_FACTOR * (last - before)):
            return 0.0
        self.woke_at = at
        return at - last

    def _gap(self, state: RankState, exempt: frozenset[str]) -> None:
        """Measure the gap between two consecutive steps, outside of evaluation, checkpoints and holds."""
        before = self.last
        if before is None or before.steps_done == 0 or state.steps_done != before.steps_done + 1:
            return
        if before.paused or state.paused or {before.activity, state.activity} & exempt:
            return
        self.longest_gap_s = max(self.longest_gap_s, state.step_at - max(before.step_at, self.woke_at))


@dataclass(frozen=True)
class _Standstill:
    """A time in which machines of a job stood still: its silence is excused once."""

    epoch: int
    steps: int
    """Steps that the first rank that woke had done."""
    at: float
    """By a clock that is never set."""


def _drop_older(samples: deque[Sample], at: float) -> None:
    while len(samples) > 2 and at - samples[1][0] >= SAMPLE_S:
        samples.popleft()


def _to_compare_with(samples: deque[Sample]) -> Sample | None:
    return samples[0] if samples and samples[-1][0] - samples[0][0] >= SAMPLE_S / 2 else None


def _since(before: float | None, now_so: bool, at: float) -> float | None:
    if not now_so:
        return None
    return at if before is None else before


class Hangs:
    """Watches all running jobs."""

    def __init__(self, site: Site, correlator: Correlator, stacks: StackReader | None = None) -> None:
        self._site = site
        self._correlator = correlator
        self._stacks = stacks
        self._samples: dict[str, StackHistory] = {}
        self._policy = site.policy.hang
        self._exempt = frozenset(self._policy.activity_limits_s)
        self._ranks: dict[tuple[str, str, int], _History] = {}
        self._standstills: dict[str, _Standstill] = {}
        """The newest of each job."""
        self._reported_at: dict[str, float] = {}
        """By a clock that is never set."""
        self._known = KnownPauses()
        self._vitals = VitalSigns(self._policy)

    def observe(self, beat: Heartbeat) -> None:
        """Take one heartbeat of an admitted machine."""
        for run in beat.jobs:
            job = self._site.fleet.jobs.get(run.job)
            if job is None or run.epoch != job.epoch or beat.machine not in job.machines:
                continue
            self._vitals.observe(beat.machine, (run.job, run.epoch), beat.vitals, beat.at)
            for rank in run.ranks:
                key = (run.job, beat.machine, rank.rank)
                known = self._ranks.get(key)
                if known is None or (known.epoch, known.pid) != (run.epoch, rank.pid):
                    known = self._ranks[key] = _History(run.epoch, rank.pid)
                stood_s = known.wake(rank, beat.at, LATE_S + 2 * self._site.settings.heartbeat_s)
                if stood_s and self._is_excused(run.job, run.epoch, rank.steps_done, stood_s):
                    known.excused_at = beat.at
                self._known.observe(job, known.last, rank, self._exempt, known.woke_at)
                known.add(rank, beat.at, self._exempt)

    def _is_excused(self, job: str, epoch: int, steps: int, stood_s: float) -> bool:
        """Return whether a late heartbeat of a rank excuses the silence of its job: the first, and those beside it.

        Of a thousand machines one is late in every window. Each for itself, they would excuse a hang for hours.
        """
        known, now = self._standstills.get(job), self._site.clock.monotonic()
        if known is None or known.epoch != epoch or steps > known.steps:
            self._standstills[job] = _Standstill(epoch, steps, now)
            return True
        return now - stood_s <= known.at + TOGETHER_S

    async def tick(self) -> None:
        """Run one round."""
        jobs = self._site.fleet.jobs
        self._standstills = {name: known for name, known in self._standstills.items() if name in jobs}
        running = {job.name: set(job.machines) for job in jobs.values() if job.state is JobState.RUNNING}
        for job_name, machine, rank in list(self._ranks):
            if machine not in running.get(job_name, ()):
                del self._ranks[job_name, machine, rank]
        self._reported_at = {name: at for name, at in self._reported_at.items() if name in jobs}
        self._known.keep(jobs)
        self._vitals.keep({machine for machines in running.values() for machine in machines})
        self._samples = {name: known for name, known in self._samples.items() if name in jobs}
        for job in list(jobs.values()):
            if job.state is JobState.RUNNING:
                await self._judge(job)

    async def _judge(self, job: Job) -> None:
        if self._moves(job) and not self._spins(job):
            self._samples.pop(job.name, None)
            return
        ranks = self._facts(job)
        learned = await self._learned(job, ranks)
        vote = hang.vote(ranks, self._policy, job_state=job.state, learned=learned)
        now, passed = self._site.clock.now(), self._site.clock.monotonic()
        self._sample(job, vote, passed)
        if not vote.hang or passed - self._reported_at.get(job.name, float("-inf")) < AGAIN_S:
            return
        self._reported_at[job.name] = passed
        if await asyncio.to_thread(self._site.ledger.acting, job.name, evidence=False):
            return
        log.warning("job %s hangs: %s", job.name, "; ".join(vote.reasons))
        await self._correlator.accept_all([_alert(job, vote, now)])

    async def _learned(self, job: Job, ranks: Sequence[HangFacts]) -> Learned:
        """Return the durations learned so far; the job's starts are looked up only where one takes long."""
        slow = [rank for rank in ranks if not rank.steps_done and rank.silent_s > self._policy.first_step_s]
        if slow and not self._known.has_starts(job):
            epochs = await asyncio.to_thread(self._site.ledger.epochs, job.name, machines=False)
            self._known.take_starts(job, epochs)
        return self._known.learned(job)

    def _sample(self, job: Job, vote: hang.HangVote, now: float) -> None:
        """Have the stacks of a job read that is silent for too long; forget them once it is not."""
        if "silent" not in vote.signals or (vote.exempt and not vote.working):
            self._samples.pop(job.name, None)
            return
        known = self._samples.get(job.name)
        if known is None or known.epoch != job.epoch:
            known = self._samples[job.name] = StackHistory(job.epoch)
        # Reading stacks holds the processes up for a moment: the longer it takes, the rarer.
        every_s = max(self._policy.stacks_every_s, _SAMPLES_SHARE * vote.silent_s)
        if self._stacks is None or vote.hang or now - known.asked_at < every_s:
            return
        known.asked_at = now
        self._site.spawn(self._read(self._stacks, job, known), f"stacks of {job.name}")

    async def _read(self, stacks: StackReader, job: Job, known: StackHistory) -> None:
        known.add(await stacks.read(job, self._site.fleet.machines))

    def _moves(self, job: Job) -> bool:
        """Return whether some rank completed a step so recently that a hang is ruled out."""
        for machine, run in self._site.fleet.runs(job):
            for rank in run.ranks:
                if (known := self._ranks.get((job.name, machine, rank.rank))) is None:
                    continue
                silent_s = max(0.0, known.cpu[-1][0] - max(rank.step_at, known.excused_at))
                if hang.rules_out(silent_s, rank.step_s, known.longest_gap_s, self._policy):
                    return True
        return False

    def _spins(self, job: Job) -> bool:
        """Return whether all machines look as if they only wait for one another: then the window is not waited for."""
        return all(self._vitals.still(name).spins_s >= self._policy.spin_s for name in job.machines)

    def _facts(self, job: Job) -> list[HangFacts]:
        found = []
        samples, gap_s = self._samples.get(job.name), self._known.gap_s(job)
        same = samples.unchanged(self._policy.stacks_samples) if samples else frozenset()
        changing = samples.moved if samples else frozenset()
        for machine, run in self._site.fleet.runs(job):
            vitals, still = self._site.fleet.vitals(machine), self._vitals.still(machine)
            for rank in run.ranks:
                if (known := self._ranks.get((job.name, machine, rank.rank))) is None:
                    continue
                found.append(
                    facts(
                        machine,
                        rank,
                        known.cpu[-1][0],
                        woke_at=known.excused_at,
                        earlier=known.earlier(),
                        longest_gap_s=max(known.longest_gap_s, gap_s),
                        stopped_since=known.stopped_since,
                        blocked_since=known.blocked_since,
                        work_before=known.work_before(),
                        stacks_unchanged=rank.rank in same,
                        stacks_change=rank.rank in changing,
                        vitals=vitals,
                        still=still,
                    )
                )
        return sorted(found, key=lambda each: each.rank)


def _alert(job: Job, vote: hang.HangVote, now: float) -> Alert:
    machines = {job.machine_of(rank) for rank in vote.suspects}
    return Alert(
        kind=AlertKind.HANG,
        job=job.name,
        epoch=job.epoch,
        machine=next(iter(machines)) if len(machines) == 1 else None,
        rank=vote.suspects[0] if len(vote.suspects) == 1 else None,
        at=now,
        # Who stands out may change from round to round: it is one hang all the same.
        fingerprint=f"hang:{job.name}:{job.epoch}",
        evidence={
            "signals": list(vote.signals),
            "silent_s": round(vote.silent_s, 3),
            "window_s": round(vote.window_s, 3),
            "ranks": list(vote.suspects),
            "stopped": list(vote.stopped),
            "blocked": list(vote.blocked),
            "ended": list(vote.ended),
            "working": list(vote.working),
            "starting": vote.starting,
            "steps_done": vote.steps_done,
            "of_ranks": vote.of_ranks,
            "plain": vote.plain,
            "reasons": list(vote.reasons),
        },
    )

"""Collects what ranks of a job saved at one step, and compares what replicas hold.

Bounded: the digests of two steps per running job, and what was learned of each path.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from holdfast.deployments.gateway.intake.correlate import Correlator
from holdfast.deployments.gateway.site import Site, log
from holdfast.models.agent import Report
from holdfast.models.alert import Alert, AlertKind
from holdfast.models.job import Job, JobState
from holdfast.policies.detect.replicas import HeldState, Key, KnownResults, RoundResult, judge
from holdfast.policies.diagnose.groups import place_of

OPEN = 2
"""Steps that may wait for reports of all ranks: an older one is judged by the reports that it has."""
GOOD = 64
MOST_PATHS = 5
"""Most paths that an alert names."""

Round = dict[int, tuple[tuple[str, ...], Sequence[int]]]
"""Paths and their digests, by rank."""


@dataclass
class _Job:
    """One submission of a job with one version of its code."""

    identity: tuple[object, ...]
    epoch: int = 0
    learned: dict[Key, KnownResults] = field(default_factory=dict)
    open: dict[int, Round] = field(default_factory=dict)
    due: list[tuple[int, Round]] = field(default_factory=list)
    lists: dict[tuple[str, ...], tuple[str, ...]] = field(default_factory=dict)
    """Lists of paths, each once: replicas on all machines have the same."""
    good: list[tuple[int, frozenset[int] | None]] = field(default_factory=list)
    """Steps at which all that was compared was the same, in order, and whose it was; None: all ranks'."""

    def last_good(self, step: int, ranks: Collection[int]) -> int | None:
        """Return the newest step before ``step`` whose comparison included ``ranks`` and found no difference."""
        found = (at for at, who in self.good if at < step and (who is None or who.issuperset(ranks)))
        return max(found, default=None)


class Replicas:
    """Collects the agents' reports of digests, and compares the replicas in a thread."""

    def __init__(self, site: Site, correlator: Correlator) -> None:
        self._site = site
        self._correlator = correlator
        self._jobs: dict[str, _Job] = {}
        self._unsent: list[Alert] = []
        """Alerts that the ledger could not take yet: a step is compared once."""

    def record(self, report: Report) -> None:
        """Take an admitted machine's report on its own ranks."""
        job = self._site.fleet.jobs.get(report.job or "")
        if job is None or report.epoch != job.epoch or report.machine not in job.machines:
            return
        known = self._known(job)
        mine = set(job.ranks_of(report.machine))
        for each in report.holds:
            if mine.issuperset(rank.rank for rank in each.ranks):
                by_rank = known.open.setdefault(each.step, {})
                for rank in each.ranks:
                    paths = known.lists.setdefault(each.paths[rank.paths], each.paths[rank.paths])
                    by_rank[rank.rank] = paths, rank.values()
        self._close(job, known)

    async def tick(self) -> None:
        """Run one round."""
        jobs = self._site.fleet.jobs
        self._jobs = {name: known for name, known in self._jobs.items() if name in jobs}
        await self._send()
        for name, known in list(self._jobs.items()):
            while known.due and jobs[name].state is JobState.RUNNING:
                step, by_rank = known.due.pop(0)
                await self._judge(jobs[name], known, step, by_rank)

    def _known(self, job: Job) -> _Job:
        # Other code may keep other things alike.
        identity = (job.submitted_at, job.code_version, job.spec.world_size)
        known = self._jobs.get(job.name)
        if known is None or known.identity != identity:
            known = self._jobs[job.name] = _Job(identity)
        if known.epoch != job.epoch:
            known.epoch = job.epoch
            known.open.clear()
            known.lists.clear()
            known.due.clear()
        return known

    def _close(self, job: Job, known: _Job) -> None:
        for step in sorted(known.open):
            if len(known.open[step]) == job.spec.world_size or len(known.open) > OPEN:
                known.due.append((step, known.open.pop(step)))
        if not known.open:
            known.lists.clear()

    async def _judge(self, job: Job, known: _Job, step: int, by_rank: Round) -> None:
        limits = self._site.policy.detect.replicas
        held = [HeldState(rank, _place(job, rank), *digests) for rank, digests in by_rank.items()]
        found, known.learned = await asyncio.to_thread(judge, held, known.learned, limits)
        known.good = [each for each in known.good if each[0] < step]  # later steps are computed again
        if found.by_design:
            log.info(
                "job %s step %d: %d tensors are not alike by design", job.name, step, len(found.by_design)
            )
        outcome = "differs" if found.odd or found.split else "same" if found.compared else "learning"
        self._site.metrics.replicas.labels(outcome).inc()
        if found.good:
            who = None if len(by_rank) == job.spec.world_size else frozenset(by_rank)
            known.good = [*known.good, (step, who)][-GOOD:]
        elif found.odd or found.split:
            alerts = _StepAlerts(
                job, step, known.last_good(step, found.odd or by_rank), self._site.clock.now()
            ).alerts(found, len(by_rank))
            for alert in alerts:
                log.warning("job %s: %s", job.name, alert.evidence["detail"])
            self._unsent += alerts
            await self._send()

    async def _send(self) -> None:
        while self._unsent:
            await self._correlator.accept_all(self._unsent[:1])
            del self._unsent[0]


def _place(job: Job, rank: int) -> tuple[int, ...]:
    at = place_of(rank, job.spec.world_size, job.spec.parallelism)
    return at.tp, at.pp, at.ep


@dataclass(frozen=True)
class _StepAlerts:
    """Puts into alerts what a step showed."""

    job: Job
    step: int
    good: int | None
    now: float

    def alerts(self, found: RoundResult, ranks: int) -> list[Alert]:
        """Return one alert per machine with an odd rank, or one without a machine when the odd rank cannot be found."""
        by_machine: defaultdict[str, list[int]] = defaultdict(list)
        for rank in found.odd:
            by_machine[self.job.machine_of(rank)].append(rank)
        if not by_machine:
            what = "replicas hold different bits, and no majority shows which is right"
            return [self._alert(what, found.split, None, [])]
        return [
            self._alert(
                f"{_named(odd)} on {machine} holds other bits than most replicas ({ranks} ranks compared)",
                sorted({path for rank in odd for path in found.odd[rank]}),
                machine,
                odd,
            )
            for machine, odd in by_machine.items()
        ]

    def _alert(self, what: str, paths: Sequence[str], machine: str | None, odd: list[int]) -> Alert:
        more = f" and {len(paths) - MOST_PATHS} more" if len(paths) > MOST_PATHS else ""
        since = f", the same at step {self.good}" if self.good is not None else ""
        shown = list(paths[:MOST_PATHS])
        detail = f"step {self.step}: {what}: {', '.join(shown)}{more}{since}"
        evidence = {"step": self.step, "ranks": odd, "paths": shown, "detail": detail}
        if self.good is not None:
            evidence["last_good_step"] = self.good
        return Alert(
            kind=AlertKind.REPLICA_DIFFERS,
            job=self.job.name,
            machine=machine,
            rank=odd[0] if len(odd) == 1 else None,
            epoch=self.job.epoch,
            at=self.now,
            evidence=evidence,
        )


def _named(ranks: Sequence[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"

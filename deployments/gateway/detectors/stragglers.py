"""Ranks that are lastingly slower than their peers in one phase of the step."""

from __future__ import annotations

from holdfast.deployments.gateway.intake.correlate import Correlator
from holdfast.deployments.gateway.site import Site, log
from holdfast.errors import UnavailableError
from holdfast.models.alert import Alert, AlertKind
from holdfast.models.job import Job, JobState
from holdfast.policies.detect.stragglers import RankPhases, Straggler, stragglers

Key = tuple[str, int, int, str]
"""Job, epoch, rank, phase."""


class Stragglers:
    """Judges every running job at intervals; the same rank and phase several times in a row is an alert."""

    def __init__(self, site: Site, correlator: Correlator) -> None:
        self._site = site
        self._correlator = correlator
        self._limits = site.policy.detect.straggler
        self._rounds: dict[Key, int] = {}

    async def tick(self) -> None:
        """Run one round, every ``straggler.every_s``."""
        found: dict[Key, tuple[Job, Straggler]] = {}
        for job in self._site.fleet.jobs.values():
            if job.state is JobState.RUNNING:
                found |= {(job.name, job.epoch, each.rank, each.phase): (job, each) for each in self._of(job)}
        self._rounds = {key: self._rounds.get(key, 0) + 1 for key in found}
        now = self._site.clock.now()
        # One that stays behind is reported again, as seldom as incidents are tried again at most.
        again = max(1, round(self._site.policy.again.longest_s / self._limits.every_s))
        due = {
            key: _alert(job, each, self._limits.rounds, now)
            for key, (job, each) in found.items()
            if (since := self._rounds[key] - self._limits.rounds) >= 0 and since % again == 0
        }
        for alert in due.values():
            log.warning("job %s: %s", alert.job, alert.evidence["detail"])
        try:
            await self._correlator.accept_all(due.values())
        except UnavailableError:
            for key in due:
                self._rounds[key] -= 1  # due again in the next round
            raise

    def _of(self, job: Job) -> list[Straggler]:
        waiting = frozenset(self._site.policy.hang.activity_limits_s)
        ranks = [
            RankPhases(rank=rank.rank, machine=machine, phases=rank.phases)
            for machine, rank in self._site.fleet.ranks(job)
            if rank.steps_done > 1 and not rank.paused
        ]
        return stragglers(ranks, job.spec.world_size, job.spec.parallelism, self._limits, waiting)


def _alert(job: Job, each: Straggler, rounds: int, now: float) -> Alert:
    slow = f"rank {each.rank} on {each.machine} takes {each.value:.3f} s for {each.phase}"
    detail = f"{slow}, its peers {each.median:.3f} s"
    return Alert(
        kind=AlertKind.STRAGGLER,
        job=job.name,
        machine=each.machine,
        rank=each.rank,
        epoch=job.epoch,
        at=now,
        fingerprint=f"straggler:{job.name}:{job.epoch}:{each.rank}:{each.phase}:{now:.0f}",
        evidence={**each.model_dump(exclude={"rank", "machine"}), "rounds": rounds, "detail": detail},
    )

"""Ranks whose exit was not reported: the agent's event was lost (the gateway was away), or the agent restarted."""

from __future__ import annotations

from collections.abc import Container, Iterator
from typing import NamedTuple

from holdfast.deployments.gateway.intake.correlate import Correlator
from holdfast.deployments.gateway.site import Site
from holdfast.models.agent import RankPhase
from holdfast.models.alert import Alert, AlertKind
from holdfast.models.job import Job, JobState
from holdfast.models.machine import Machine

LACKS_S = 60.0
"""A machine of a running job that reports no ranks for so long, and three heartbeats more, has lost them."""
WAIT_FOR_EVENT_S = 1.0
"""The agent's own event knows more than a heartbeat: it goes first."""


class _Exit(NamedTuple):
    """One rank of one life of its machine that ended badly."""

    job: str
    epoch: int
    machine: str
    incarnation: str
    rank: int


class UnreportedExits:
    """Compares what heartbeats show with what should run."""

    def __init__(self, site: Site, correlator: Correlator) -> None:
        self._site = site
        self._correlator = correlator
        self._seen_at: dict[_Exit, float] = {}
        self._lacking: dict[tuple[str, int, str, str], float] = {}
        """Job, epoch, machine and its incarnation: since when it reports no ranks, by a clock that is never set."""
        self.launching: Container[str] = ()
        """Jobs that a person starts at the moment; the correlator's."""

    async def tick(self) -> None:
        """Run one round."""
        now = self._site.clock.now()
        found = dict(self._failed())
        self._seen_at = {each: self._seen_at.get(each, now) for each in found}
        due = [each for each in found if now - self._seen_at[each] >= WAIT_FOR_EVENT_S]
        await self._correlator.accept_all([_failed(each, found[each], now) for each in due])
        # The correlator knows it as a duplicate from now on; it need not be asked each round.
        self._seen_at |= dict.fromkeys(due, now)
        await self._look_for_ranks()

    async def _look_for_ranks(self) -> None:
        """Report machines of running jobs that live, and have no ranks: no event and no peer may ever report that.

        The gateway may have been killed, or have lost its ledger, just when an agent came back without them.
        """
        site, now = self._site, self._site.clock.monotonic()
        found = {
            (job.name, job.epoch, name, site.fleet.machines[name].incarnation): job
            for job in site.fleet.jobs.values()
            if job.state is JobState.RUNNING and job.name not in self.launching
            for name in job.machines
            if site.fleet.lacks(job, name)
        }
        self._lacking = {key: self._lacking.get(key, now) for key in found}
        limit_s = LACKS_S + 3 * site.settings.heartbeat_s
        due = [key for key, since in self._lacking.items() if now - since >= limit_s]
        # Made before any is taken up: meanwhile a machine may leave the fleet.
        alerts = [
            _without_ranks(
                found[key],
                site.fleet.machines[key[2]],
                f"machine {key[2]} has no ranks of epoch {key[1]}, and does not report how they ended",
                site.clock.now(),
            )
            for key in due
        ]
        await self._correlator.accept_all(alerts)
        # Only now: where the ledger was away, they are reported again in the next round.
        self._lacking |= dict.fromkeys(due, now)

    def _failed(self) -> Iterator[tuple[_Exit, int]]:
        """Yield the ranks that ended badly, with their exit codes: alerts are made of those alone that are due."""
        for job in self._site.fleet.jobs.values():
            if job.state is not JobState.RUNNING:
                continue
            for name, run in self._site.fleet.runs(job):
                life = self._site.fleet.machines[name].incarnation
                for rank in run.ranks:
                    if rank.phase is RankPhase.EXITED and rank.exit_code:
                        yield _Exit(job.name, run.epoch, name, life, rank.rank), rank.exit_code

    async def restarted(self, machine: Machine, before: Machine) -> None:
        """Report the ranks of an active machine as gone: its agent registered with a new incarnation."""
        job = self._site.fleet.jobs.get(machine.job or "")
        if job is None or job.state is not JobState.RUNNING or machine.name not in job.machines:
            return
        message = (
            f"the agent restarted ({before.incarnation} -> {machine.incarnation}); ranks end with their agent"
        )
        await self._correlator.accept_all([_without_ranks(job, machine, message, self._site.clock.now())])


def _without_ranks(job: Job, machine: Machine, message: str, now: float) -> Alert:
    return Alert(
        kind=AlertKind.RANK_EXIT,
        job=job.name,
        machine=machine.name,
        rank=job.ranks_of(machine.name)[0],
        epoch=job.epoch,
        incarnation=machine.incarnation,
        at=now,
        evidence={"error_type": "AgentRestarted", "message": message, "cascade": False},
    )


def _failed(seen: _Exit, exit_code: int, now: float) -> Alert:
    return Alert(
        kind=AlertKind.RANK_EXIT,
        job=seen.job,
        machine=seen.machine,
        rank=seen.rank,
        epoch=seen.epoch,
        incarnation=seen.incarnation,
        at=now,
        # Less than the agent would have reported; whether it is a cascading failure cannot be seen from here.
        evidence={"exit_code": exit_code, "source": "heartbeat", "cascade": False},
    )

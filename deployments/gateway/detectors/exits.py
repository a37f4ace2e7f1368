"""Ranks whose exit was not reported: the agent's event was lost (the gateway was away), or the agent restarted."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.deployments.gateway.intake.correlate import Correlator
from holdfast.deployments.gateway.site import Site
from holdfast.models.agent import JobOnMachine, RankPhase
from holdfast.models.alert import Alert, AlertKind
from holdfast.models.job import Job, JobState
from holdfast.models.machine import Machine

WAIT_FOR_EVENT_S = 1.0
"""The agent's own event knows more than a heartbeat: it goes first."""


class UnheardExits:
    """Compares what heartbeats show with what should run."""

    def __init__(self, site: Site, correlator: Correlator) -> None:
        self._site = site
        self._correlator = correlator
        self._seen_at: dict[str, float] = {}

    async def tick(self) -> None:
        """Run one round."""
        now = self._site.clock.now()
        found = {alert.key: alert for alert in self._failed(now)}
        self._seen_at = {key: self._seen_at.get(key, now) for key in found}
        due = [alert for key, alert in found.items() if now - self._seen_at[key] >= WAIT_FOR_EVENT_S]
        await self._correlator.accept_all(due)
        for alert in due:
            # The correlator knows it as a duplicate from now on; it need not be asked each round.
            self._seen_at[alert.key] = now

    def _failed(self, now: float) -> Iterator[Alert]:
        for job in self._site.fleet.jobs.values():
            if job.state is not JobState.RUNNING:
                continue
            for name, run in self._site.fleet.runs(job):
                yield from _of_run(job, self._site.fleet.machines[name], run, now)

    async def restarted(self, machine: Machine, before: Machine) -> None:
        """Report the ranks of an active machine as gone: its agent registered with a new incarnation."""
        job = self._site.fleet.jobs.get(machine.job or "")
        if job is None or job.state is not JobState.RUNNING or machine.name not in job.machines:
            return
        alert = Alert(
            kind=AlertKind.RANK_EXIT,
            job=job.name,
            machine=machine.name,
            rank=job.ranks_of(machine.name)[0],
            epoch=job.epoch,
            incarnation=machine.incarnation,
            at=self._site.clock.now(),
            evidence={
                "error_type": "AgentRestarted",
                "message": f"the agent restarted ({before.incarnation} -> {machine.incarnation}); "
                "ranks end with their agent",
                "cascade": False,
            },
        )
        await self._correlator.accept_all([alert])


def _of_run(job: Job, machine: Machine, run: JobOnMachine, now: float) -> Iterator[Alert]:
    for rank in run.ranks:
        if rank.phase is RankPhase.EXITED and rank.exit_code:
            yield Alert(
                kind=AlertKind.RANK_EXIT,
                job=job.name,
                machine=machine.name,
                rank=rank.rank,
                epoch=run.epoch,
                incarnation=machine.incarnation,
                at=now,
                # Less than the agent would have reported; whether it is an echo cannot be seen from here.
                evidence={"exit_code": rank.exit_code, "source": "heartbeat", "cascade": False},
            )

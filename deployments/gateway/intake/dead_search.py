"""The search for machines that died, while alerts of their peers wait for a root cause."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Protocol

from holdfast.deployments.gateway.detectors.probe import Prober, probe_all
from holdfast.deployments.gateway.fleet.view import WATCHED
from holdfast.deployments.gateway.intake.correlation_window import CorrelationWindow
from holdfast.deployments.gateway.intake.outcome import Outcome
from holdfast.deployments.gateway.site import Site
from holdfast.models.job import Job
from holdfast.models.machine import Machine

PROBE_AGAIN_S = 0.1


class Lost(Protocol):
    """Takes the loss of a machine."""

    def __call__(self, machine: Machine, detail: str, *, peers: bool) -> Awaitable[Outcome]:
        """Take it."""
        ...


class DeadSearch:
    """Asks the agents of a job; machines that surely are dead go to ``lost``."""

    def __init__(self, site: Site, prober: Prober, lost: Lost) -> None:
        self._site = site
        self._prober = prober
        self._lost = lost

    def look(self, job: Job, settling: CorrelationWindow) -> None:
        """Ask the job's agents now, and again with each look at what settles."""
        if settling.probe_at is not None and self._site.clock.now() >= settling.probe_at:
            settling.probe_at = None
            self._site.spawn(self._probe(job, settling), f"probe {job.name}")

    async def _probe(self, job: Job, settling: CorrelationWindow) -> None:
        machines = self._site.fleet.machines
        asked = {name: machines[name] for name in job.machines if name in machines}
        doubtful = self._site.silent(job.machines)
        probes = await probe_all(self._prober, [one for one in asked.values() if one.state in WATCHED])
        for probe in probes:
            if probe.alive:
                self._site.fleet.answered(probe.machine, self._site.clock.now())
        if self._site.silent(job.machines) < doubtful:
            settling.until = min(settling.until, self._site.clock.now())  # less is waited for
        dead = [probe for probe in probes if not probe.alive and probe.sure]
        # Not of what bears its name by now: one that restarted meanwhile is there.
        settling.unreachable |= {probe.machine: asked[probe.machine].incarnation for probe in dead}
        for probe in dead:
            await self._lost(asked[probe.machine], probe.detail, peers=True)
        settling.probe_at = self._site.clock.now() + PROBE_AGAIN_S

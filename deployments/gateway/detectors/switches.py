"""A switch that is down, inferred from its machines: enough of them lost their network, twice in a row (ByteRobust)."""

from __future__ import annotations

from holdfast.deployments.gateway.intake.correlate import Correlator
from holdfast.deployments.gateway.site import Site, log
from holdfast.errors import UnavailableError
from holdfast.models.alert import NETWORK_KINDS, Alert, AlertKind
from holdfast.models.job import Job, JobState
from holdfast.policies.detect import switches
from holdfast.policies.join_names import join_names

LOST = NETWORK_KINDS - {AlertKind.NIC_ERRORS} | {AlertKind.MACHINE_LOST}


class Switches:
    """Remembers when each machine last lost its network; as many entries as there are machines."""

    def __init__(self, site: Site, correlator: Correlator) -> None:
        self._site = site
        self._correlator = correlator
        self._limits = site.policy.detect.network
        self._lost_at: dict[str, float] = {}
        self._misses: dict[str, int] = {}

    def observe(self, alert: Alert) -> None:
        """Take one alert of a machine, as it arrives."""
        if alert.firing and alert.kind in LOST and alert.machine is not None and self._limits.switches:
            self._lost_at[alert.machine] = self._site.clock.now()

    async def tick(self) -> None:
        """Run one round, as often as agents look at their ports."""
        now = self._site.clock.now()
        machines = self._site.fleet.machines
        self._lost_at = {
            name: at
            for name, at in self._lost_at.items()
            if name in machines and now - at <= self._limits.switch_window_s
        }
        found = switches.suspected(self._lost_at, machines, self._limits)
        self._misses = {switch: self._misses.get(switch, 0) + 1 for switch in found}
        due = [switch for switch in found if self._misses[switch] == self._limits.switch_misses]
        for switch in due:
            log.warning("switch %s is down: %s lost their network", switch, join_names(found[switch]))
            alerts = [
                _alert(switch, found[switch], job, now)
                for job in self._site.fleet.jobs.values()
                if job.state is JobState.RUNNING and set(job.machines) & set(found[switch])
            ]
            try:
                await self._correlator.accept_all(alerts)
            except UnavailableError:
                for again in due[due.index(switch) :]:
                    self._misses[again] -= 1  # due again in the next round
                raise


def _alert(switch: str, machines: list[str], job: Job, now: float) -> Alert:
    return Alert(
        kind=AlertKind.SWITCH_DOWN,
        job=job.name,
        epoch=job.epoch,
        at=now,
        fingerprint=f"switch:{switch}:{job.name}:{now:.0f}",
        evidence={
            "switch": switch,
            "machines": machines,
            "detail": f"{len(machines)} machines below switch {switch} lost their network",
        },
    )

"""Machines that went silent: heartbeats are missing, and a probe confirms that the agent is gone.

MS (MegaScale): a missed heartbeat starts recovery. Here only together with a probe that fails too: an agent that
cannot reach the gateway, or a gateway that was busy, must not cost a machine.
"""

from __future__ import annotations

from holdfast.deployments.gateway.correlate import Correlator
from holdfast.deployments.gateway.probe import Probe, Prober, probe_all
from holdfast.deployments.gateway.site import Site, log
from holdfast.models.machine import Machine, MachineState

MIN_SILENCE_S = 1.5
"""Heartbeats are never missed sooner than this, however short their interval."""
UNSURE_SILENCE_S = 5.0
"""A machine whose agent does not refuse, but does not answer either, may be busy: it gets so long at least."""
OWN_PAUSE_S = 1.0
"""A round that comes so much too late says that the gateway itself stood still: silence then proves nothing."""
WATCHED = (MachineState.ACTIVE, MachineState.STANDBY)


class SilentMachines:
    """Finds them, once per silence."""

    def __init__(self, site: Site, prober: Prober, correlator: Correlator) -> None:
        self._site = site
        self._prober = prober
        self._correlator = correlator
        self._ticked_at = site.clock.now()
        self._asked_at: dict[str, float] = {}

    @property
    def window_s(self) -> float:
        """Silence that calls for a probe."""
        missed = self._site.policy.gateway.missed_heartbeats * self._site.settings.heartbeat_s
        return max(MIN_SILENCE_S, missed)

    async def tick(self) -> None:
        """One round."""
        now = self._site.clock.now()
        if now - self._ticked_at > OWN_PAUSE_S + self.window_s:
            self._site.fleet.grace(now)
        self._ticked_at = now
        silent = [machine for machine in self._site.fleet.machines.values() if self._is_due(machine, now)]
        self._asked_at = {
            name: at for name, at in self._asked_at.items() if name in self._site.fleet.machines
        }
        for machine in silent:
            self._asked_at[machine.name] = now
        for probe in await probe_all(self._prober, silent):
            if not probe.alive:
                await self._lost(self._site.fleet.machines[probe.machine], probe)
        self._ticked_at = self._site.clock.now()

    def _is_due(self, machine: Machine, now: float) -> bool:
        """Silent for a window, and not asked within the last one."""
        if machine.state not in WATCHED or not machine.incarnation:
            return False
        silent_s = self._site.fleet.silent_s(machine.name, now)
        return min(silent_s, now - self._asked_at.get(machine.name, 0.0)) > self.window_s

    async def _lost(self, machine: Machine, probe: Probe) -> None:
        silent_s = self._site.fleet.silent_s(machine.name, self._site.clock.now())
        # It may have spoken while it was asked.
        if silent_s <= (self.window_s if probe.sure else max(UNSURE_SILENCE_S, 3 * self.window_s)):
            return
        log.warning("machine %s: no heartbeat for %.1f s, and %s", machine.name, silent_s, probe.detail)
        await self._correlator.lost(machine, probe.detail, missed_s=silent_s)

"""Detect machines that went silent: heartbeats are missing, and a probe confirms that the agent is gone.

MegaScale: a missed heartbeat starts recovery. Here it does so only together with a failed probe: an agent that
cannot reach the gateway, or a gateway that was busy, must not cost a machine. And when no machine is heard, it is the
gateway that has lost its network.
"""

from __future__ import annotations

import asyncio

from holdfast.deployments.gateway.detectors.probe import Probe, Prober, probe_all
from holdfast.deployments.gateway.fleet.view import WATCHED
from holdfast.deployments.gateway.intake.correlate import Correlator
from holdfast.deployments.gateway.site import Site, log
from holdfast.models.job import ENDED
from holdfast.models.machine import Machine
from holdfast.policies.detect import silence

OWN_PAUSE_S = 1.0
"""A round that is late by this much shows that the gateway itself stalled: silence then proves nothing."""


QUIET_S = 3600.0
"""Interval between two log lines about the same silence: a dead machine may stay for days."""


class SilentMachines:
    """Finds them, once per silence."""

    def __init__(self, site: Site, prober: Prober, correlator: Correlator) -> None:
        self._site = site
        self._prober = prober
        self._correlator = correlator
        self._ticked_at = site.clock.now()
        self._asked_at: dict[str, float] = {}
        self._logged_at: dict[tuple[str, str], float] = {}
        """By machine and incarnation."""
        self._alone = False

    async def tick(self) -> None:
        """Run one round."""
        now = self._site.clock.now()
        if now - self._ticked_at > OWN_PAUSE_S + self._site.window_s:
            self._site.fleet.grace(now)
        elif now < self._ticked_at:
            self._site.fleet.set_back(now)
            self._asked_at.clear()
        self._ticked_at = now
        silent = [machine for machine in self._site.fleet.machines.values() if self._is_due(machine, now)]
        self._asked_at = {
            name: at for name, at in self._asked_at.items() if name in self._site.fleet.machines
        }
        for machine in silent:
            self._asked_at[machine.name] = now
        for probe in await probe_all(self._prober, silent):
            if probe.alive:
                self._site.fleet.answered(probe.machine, self._site.clock.now())
            elif lost := self._site.fleet.machines.get(probe.machine):  # else it was retired meanwhile
                await self._lost(lost, probe)
        self._note_alone()
        self._ticked_at = self._site.clock.now()

    def _is_due(self, machine: Machine, now: float) -> bool:
        """Return whether the machine was silent for a window, and not probed within the last one."""
        if machine.state not in WATCHED or not machine.incarnation:
            return False
        silent_s = self._site.fleet.silent_s(machine.name, now)
        return min(silent_s, now - self._asked_at.get(machine.name, 0.0)) > self._site.window_s

    async def _lost(self, machine: Machine, probe: Probe) -> None:
        self._note_alone()
        silent_s = self._site.fleet.silent_s(machine.name, self._site.clock.now())
        # A heartbeat may have arrived during the probe.
        if silent_s <= (self._site.window_s if probe.sure else self._patience_s(machine)):
            return
        if not probe.sure and self._is_alone(but=machine.name):
            return
        self._say(machine, silent_s, probe)
        if await self._is_gone(machine, silent_s):
            return
        await self._correlator.lost(machine, probe.detail, missed_s=silent_s, silent=not probe.sure)

    def _patience_s(self, machine: Machine) -> float:
        site = self._site
        back_s = site.fleet.back_s(site.window_s, site.clock.now())
        others = [since_s for name, since_s in back_s.items() if name != machine.name]
        return silence.patience_s(site.lease_of(machine), others, site.policy.gateway)

    async def _is_gone(self, machine: Machine, silent_s: float) -> bool:
        """Mark dead machines of an ended job as gone after a while: no playbook recovers the job and evicts them.

        The slot is empty then, and the next start of the job takes a standby; a machine that comes back is a standby.
        """
        job, after_s = self._site.fleet.jobs.get(machine.job or ""), self._site.policy.gateway.gone_after_s
        if job is None or job.state not in ENDED or silent_s < after_s:
            return False
        why = f"dead for {silent_s:.0f} s; its job {job.name} is {job.state.value}"
        gone = await asyncio.to_thread(
            self._site.ledger.lose, machine.name, machine.incarnation, job.name, why
        )
        if gone:
            log.warning("machine %s is gone: %s", machine.name, why)
        await self._site.refresh()
        return True

    def _say(self, machine: Machine, silent_s: float, probe: Probe) -> None:
        now, who = self._site.clock.monotonic(), (machine.name, machine.incarnation)
        self._logged_at = {key: at for key, at in self._logged_at.items() if now - at < QUIET_S}
        if self._logged_at.setdefault(who, now) == now:
            log.warning("machine %s: no heartbeat for %.1f s, and %s", machine.name, silent_s, probe.detail)

    def _is_alone(self, but: str = "") -> bool:
        """Return whether no machine is heard, leaving out the machine ``but``."""
        now, fleet = self._site.clock.now(), self._site.fleet
        watched = [m for m in fleet.machines.values() if m.state in WATCHED and m.name != but]
        return silence.is_alone([fleet.silent_s(m.name, now) for m in watched], self._site.lease_s / 2)

    def _note_alone(self) -> None:
        """Log once when no machine is heard, and once when that is over."""
        watched = sum(machine.state in WATCHED for machine in self._site.fleet.machines.values())
        alone, before = watched > 1 and self._is_alone(), self._alone
        self._alone = alone
        self._site.metrics.alone.set(alone)
        if alone and not before:
            log.error(
                "no machine answers: this gateway's own network seems to be cut off, no machine is accused"
            )
        elif before and not alone:
            # The others come back one after the other: heartbeats missing meanwhile accuse none of them.
            self._site.fleet.grace(self._site.clock.now())
            log.warning("machines answer again")

"""Alerts about machines that serve no job: a standby that is not fit leaves the pool at once."""

from __future__ import annotations

import asyncio
from collections import deque

from holdfast.deployments.gateway.intake.outcome import Outcome, What
from holdfast.deployments.gateway.site import Site, log
from holdfast.models.alert import Alert, AlertKind, MoveSource
from holdfast.models.machine import Machine, MachineState
from holdfast.policies.classify import sure_signs
from holdfast.policies.config.policy import ClassifyPolicy
from holdfast.policies.escalate import breaker

IN_POOL = (MachineState.STANDBY, MachineState.PROVISIONING)

LEAVES = (MoveSource.MAINTENANCE, MoveSource.PREEMPTION, MoveSource.DRAIN)
"""Whatever announces that a machine will be taken away: a job must not be moved to it."""


def why_unfit(alert: Alert, policy: ClassifyPolicy) -> str:
    """Return why a machine without ranks is not to be used any more, by one alert about it; empty: it may be."""
    if alert.kind is AlertKind.MANUAL:
        return f"{alert.evidence.get('by', 'an unnamed person')}: {alert.evidence.get('text') or 'no reason given'}"
    if alert.kind is AlertKind.PLANNED_MOVE and alert.evidence.get("source") in LEAVES:
        return str(alert.evidence.get("text") or alert.evidence["source"])
    return sure_signs.find([alert], policy).get(alert.machine or "", "")


class Spares:
    """Keeps bad standbys from being swapped into a job. No incident: nothing was interrupted."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._cordoned_at: deque[float] = deque(maxlen=1000)

    async def accept(self, alert: Alert, machine: Machine) -> Outcome:
        """Cordon the standby if the alert proves it unfit."""
        why = why_unfit(alert, self._site.policy.classify)
        if machine.state not in IN_POOL or not why:
            await self._record(alert, What.IGNORED)
            return Outcome(
                outcome=What.IGNORED, message=f"machine {machine.name} ({machine.state}) has no job"
            )
        gone = alert.kind is AlertKind.MACHINE_LOST
        if not gone and (forbidden := self._breaker()):
            await self._record(alert, What.IGNORED)
            return Outcome(outcome=What.IGNORED, message=forbidden)
        state = MachineState.GONE if gone else MachineState.CORDONED
        meant = alert.incarnation or machine.incarnation
        out = await asyncio.to_thread(self._site.ledger.lose, machine.name, meant, None, why, state)
        known = await self._site.machine(machine.name)
        if not out:
            # What was seen is of a life that is over, or a job has just taken it: its own watch sees to it.
            await self._record(alert, What.IGNORED)
            return Outcome(
                outcome=What.IGNORED,
                message=f"machine {machine.name} is {known.state} as {known.incarnation} now: it stays",
            )
        if not gone:
            self._cordoned_at.append(self._site.clock.now())
        self._site.metrics.cordons.labels(alert.kind).inc()
        log.warning("standby %s leaves the pool: %s", machine.name, why)
        await self._record(alert, What.CORDONED)
        return Outcome(outcome=What.CORDONED, message=f"standby {machine.name}: {why}")

    def _breaker(self) -> str:
        """Return why no more standbys may be cordoned: one bad sensor must not empty the pool. Empty: they may."""
        size, now = len(self._site.fleet.machines), self._site.clock.now()
        answer = breaker.may_evict(self._cordoned_at, 1, size, now, self._site.policy.breaker)
        return "" if answer.allowed else answer.reason

    async def _record(self, alert: Alert, what: What) -> None:
        await asyncio.to_thread(self._site.ledger.record_alert, alert, None, what)

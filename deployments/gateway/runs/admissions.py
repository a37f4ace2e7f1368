"""Delivery checks of machines that have just registered, without waiting for the schedule."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping

from holdfast.deployments.gateway.runs.flow_runs import Runs
from holdfast.deployments.gateway.site import Site, log
from holdfast.errors import UnavailableError
from holdfast.models.machine import Machine, MachineState
from holdfast.models.repair import RepairState
from holdfast.policies.pool.admission import due, waits

FLOW = "admit-machine"


class Admissions:
    """Starts the delivery checks once for each life of a machine; what fails then is the schedule's."""

    def __init__(self, site: Site, runs: Runs) -> None:
        self._site = site
        self._runs = runs
        self._asked: dict[str, str] = {}

    @property
    def on(self) -> bool:
        """Whether machines that register wait for the checks."""
        return waits(self._site.policy.standby.admission, self._site.settings.driver)

    async def tick(self) -> None:
        """Ask for the checks of those that have come and have not been asked for."""
        if not self.on:
            return
        fleet = self._site.fleet
        self._asked = {name: life for name, life in self._asked.items() if name in fleet.machines}
        come = [machine for machine in fleet.machines.values() if self._comes(machine)]
        if come:
            # Their repairs check them, and longer.
            repairs = await asyncio.to_thread(self._site.ledger.repairs, state=RepairState.OPEN)
            repaired = {repair.machine for repair in repairs}
            come = [machine for machine in come if machine.name not in repaired]
        chosen = due({machine.name: machine.registered_at for machine in come}, self._site.clock.now())
        if not chosen:
            return
        lives = {machine.name: machine.incarnation for machine in come if machine.name in chosen}
        try:
            await self._runs.start(FLOW, {"admission": {"machines": list(lives)}}, key=_key(lives))
        except UnavailableError as error:
            # Asked again at the next tick; training does not wait for it.
            log.warning("%s wait for their delivery checks: %s", ", ".join(lives), error)
        else:
            self._asked |= lives

    def _comes(self, machine: Machine) -> bool:
        """Return whether it registered in this incarnation, was heard by this gateway, and is not asked for yet."""
        return (
            machine.state is MachineState.PROVISIONING
            and bool(machine.address)
            and self._asked.get(machine.name) != machine.incarnation
            and self._site.fleet.last_seen(machine.name) >= machine.registered_at
        )


def _key(lives: Mapping[str, str]) -> str:
    """Return the idempotency key of these lives' checks, short: PostgreSQL indexes no text of some thousand bytes."""
    digest = hashlib.sha256(repr(sorted(lives.items())).encode()).hexdigest()
    return f"admit:{len(lives)}:{digest[:32]}"

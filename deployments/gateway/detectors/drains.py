"""Machines that their engine drains (Slurm, Kubernetes): their jobs are asked to leave them."""

from __future__ import annotations

from collections.abc import Callable, Collection

from holdfast.deployments.gateway.fleet.engine import EngineQuestion
from holdfast.deployments.gateway.intake.correlate import Correlator
from holdfast.deployments.gateway.site import Site
from holdfast.drivers.base import Drains, Driver, Leaving
from holdfast.errors import StaleError
from holdfast.models.alert import Alert, AlertKind, MoveSource
from holdfast.models.job import JobState
from holdfast.models.machine import Machine, MachineState


class DrainedMachines:
    """Asks the driver now and then. A drain that lasts is one request, until something has changed for its job."""

    def __init__(self, site: Site, correlator: Correlator, driver: Callable[[], Driver]) -> None:
        self._site = site
        self._correlator = correlator
        self._engine = EngineQuestion(driver, _leaving, "drains are not seen")
        self._asked: set[str] = set()
        self._leave: dict[str, str] = {}
        """Machines that were to be left at the last round, with their incarnation."""

    async def tick(self) -> None:
        """Run one round."""
        leaving = await self._engine.answer()
        if leaving is None:
            return  # a drain is seen later, or not here
        await self._withdraw({each.name for each in leaving})
        due = [alert for each in leaving if (alert := self._alert(each)) is not None]
        self._asked &= {alert.fingerprint for alert in due}
        self._leave |= {alert.machine: alert.incarnation or "" for alert in due if alert.machine}
        for alert in due:
            if alert.fingerprint in self._asked:
                continue
            (outcome,) = await self._correlator.accept_all([alert])
            if outcome.error != StaleError.__name__:  # else it is asked again: an incident was just closed
                self._asked.add(alert.fingerprint)

    async def _withdraw(self, leaving: Collection[str]) -> None:
        """Report the drains that were taken back: a move that has not come to its switch is not made."""
        over = {name: life for name, life in self._leave.items() if name not in leaving}
        await self._correlator.accept_all(
            Alert(
                kind=AlertKind.PLANNED_MOVE,
                machine=name,
                incarnation=life or None,
                at=self._site.clock.now(),
                firing=False,
                evidence={"source": MoveSource.DRAIN.value},
            )
            for name, life in over.items()
        )
        self._leave = {name: life for name, life in self._leave.items() if name in leaving}

    def _alert(self, leaving: Leaving) -> Alert | None:
        machine = self._site.fleet.machines.get(leaving.name)
        if machine is None or machine.state not in (MachineState.ACTIVE, MachineState.STANDBY):
            return None
        job = self._site.fleet.jobs.get(machine.job or "")
        if machine.state is MachineState.ACTIVE and (
            job is None
            or job.state is not JobState.RUNNING
            or (machine.name not in job.machines and not machine.role)
        ):
            return None
        return Alert(
            kind=AlertKind.PLANNED_MOVE,
            job=job.name if job else None,
            machine=machine.name,
            epoch=job.epoch if job else None,
            incarnation=machine.incarnation,
            at=self._site.clock.now(),
            fingerprint=self._fingerprint(machine, job.epoch if job else 0),
            evidence={"source": MoveSource.DRAIN.value, "text": leaving.reason},
        )

    def _fingerprint(self, machine: Machine, epoch: int) -> str:
        """Return what is new in another epoch, and when there is a standby where there was none."""
        spare = any(
            each.state is MachineState.STANDBY and each.name != machine.name
            for each in self._site.fleet.machines.values()
        )
        return (
            f"planned_move:{machine.name}:{machine.incarnation}:drain:e{epoch}:{'spare' if spare else 'none'}"
        )


def _leaving(driver: Driver) -> list[Leaving] | None:
    return driver.leaving() if isinstance(driver, Drains) else None

"""Machines that their engine drains ask for a planned move, once for each change."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.deployments.gateway.detectors.drains import DrainedMachines
from holdfast.drivers.base import Leaving
from holdfast.errors import UnavailableError
from holdfast.models.alert import IncidentClass, IncidentState
from holdfast.models.machine import MachineState
from holdfast.policies.pool import planned_move
from holdfast.testing.gateway_kit import JOB, Kit, start_epoch


def watched(kit: Kit, *names: str) -> tuple[DrainedMachines, list[Leaving]]:
    """The detector over a driver that drains these."""
    leaving = [Leaving(name=name, reason="Slurm: rack 4 moves") for name in names]
    driver: Any = SimpleNamespace(leaving=lambda: list(leaving))
    return DrainedMachines(kit.gateway.site, kit.gateway.correlator, lambda: driver), leaving


async def test_a_drained_machine_of_a_job_is_left(kit: Kit) -> None:
    """Once, however long the drain lasts."""
    job = await kit.running_job()
    drains, _ = watched(kit, job.machines[1])
    for _ in range(3):
        await drains.tick()
        await kit.settled()
    (incident,) = kit.incidents()
    assert incident.incident_class is IncidentClass.PLANNED_MOVE
    assert incident.reasons == (f"asked to leave {job.machines[1]}, drain: Slurm: rack 4 moves",)


async def test_it_is_asked_again_when_something_has_changed(kit: Kit) -> None:
    """In the next epoch, after a fault came first; and when a standby came."""
    job = await kit.running_job(standbys=0)
    drains, _ = watched(kit, job.machines[1])
    await drains.tick()
    kit.ledger.set_incident(f"{JOB}-1", state=IncidentState.NEEDS_HUMAN)
    await drains.tick()
    assert len(kit.incidents()) == 1
    await kit.register("m9")
    await kit.gateway.site.refresh()
    await drains.tick()
    assert len(kit.incidents()) == 2
    kit.close_incident(f"{JOB}-2")
    start_epoch(kit.ledger, JOB)
    await kit.gateway.site.refresh()
    await drains.tick()
    assert len(kit.incidents()) == 3


async def test_it_is_asked_again_when_the_ledger_was_away(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    """A drain that lasts is one request: were it lost, the engine would take the machine from under its job."""
    job = await kit.running_job()
    drains, _ = watched(kit, job.machines[1])

    async def away(_alerts: object) -> Any:
        raise UnavailableError("the ledger does not answer")

    with monkeypatch.context() as patched:
        patched.setattr(kit.gateway.correlator, "accept_all", away)
        with pytest.raises(UnavailableError):
            await drains.tick()
    await drains.tick()
    await kit.settled()
    assert [each.incident_class for each in kit.incidents()] == [IncidentClass.PLANNED_MOVE]


async def test_a_drained_standby_leaves_the_pool(kit: Kit) -> None:
    """A job must not be moved to it."""
    await kit.running_job()
    drains, _ = watched(kit, "m2", "unknown")
    await drains.tick()
    assert kit.ledger.machine("m2").state is MachineState.CORDONED
    assert kit.incidents() == []


async def test_a_driver_that_knows_of_no_drains_is_left_alone(kit: Kit) -> None:
    """The local one, and those of other packages."""
    await kit.running_job()
    plain: Any = SimpleNamespace()
    await DrainedMachines(kit.gateway.site, kit.gateway.correlator, lambda: plain).tick()
    assert kit.incidents() == []


async def test_an_engine_that_is_away_is_logged_once(kit: Kit, caplog: pytest.LogCaptureFixture) -> None:
    """A gateway may run where the engine's commands are not."""
    await kit.running_job()

    def away() -> Any:
        raise UnavailableError("slurmctld does not answer")

    drains = DrainedMachines(kit.gateway.site, kit.gateway.correlator, away)
    with caplog.at_level(logging.WARNING):
        await drains.tick()
        await drains.tick()
    assert caplog.text.count("slurmctld does not answer") == 1


async def test_a_drain_that_is_taken_back_is_reported_as_over(kit: Kit) -> None:
    """Once, to the incident that it opened; a drain of a machine that nothing was asked for is none."""
    job = await kit.running_job()
    drains, leaving = watched(kit, job.machines[1], "unknown")
    await drains.tick()
    await kit.settled()
    (incident,) = kit.incidents()
    leaving.clear()
    for _ in range(2):
        await drains.tick()
        await kit.settled()
    recorded = kit.ledger.alerts(incident.id)
    assert [alert.machine for alert in recorded if not alert.firing] == [job.machines[1]]
    assert planned_move.withdrawn(kit.ledger.incident(incident.id), recorded)

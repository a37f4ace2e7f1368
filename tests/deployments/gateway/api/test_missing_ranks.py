"""Agents that have lost ranks of a running job, and those that have not."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from holdfast.deployments.gateway.detectors.unreported_exits import LACKS_S
from holdfast.deployments.gateway.intake.outcome import Outcome
from holdfast.errors import UnavailableError
from holdfast.models.alert import Alert, IncidentClass
from holdfast.models.job import JobState
from holdfast.testing.gateway_kit import JOB, Kit, rank


async def test_agent_that_restarted_lost_its_ranks(kit: Kit) -> None:
    """A new incarnation of an active machine is a crash of the job on that machine."""
    await kit.running_job()
    await kit.register("m1", "i2")
    await kit.settled()
    (incident,) = kit.incidents()
    assert (incident.incident_class, incident.machine) == (IncidentClass.JOB_CRASH, "m1")


async def without_ranks(kit: Kit, seconds: float, *, silent: bool = False) -> None:
    """The only machine of the job reports that it runs nothing, while the gateway looks."""
    for _ in range(int(seconds)):
        if not silent:
            await kit.beat("m0")
        await kit.gateway.site.refresh()
        await kit.gateway.exits.tick()
        await kit.settled()
        kit.clock.advance(1.0)


async def test_a_job_whose_only_machine_has_no_ranks_is_recovered(kit: Kit) -> None:
    """Its agent came back while the gateway was killed: no event reports it, and there is no peer to fall."""
    await kit.running_job(machines=1)
    limit_s = LACKS_S + 3 * kit.settings.heartbeat_s
    await without_ranks(kit, limit_s - 2.0)
    assert not kit.incidents()
    await without_ranks(kit, 5.0)
    (incident,) = kit.incidents()
    assert (incident.incident_class, incident.machine) == (IncidentClass.JOB_CRASH, "m0")
    assert "no ranks of epoch 1" in str(incident.alerts[0].evidence["message"])


async def test_machines_that_have_ranks_or_are_silent_or_held_lack_none(kit: Kit) -> None:
    """The controls: what reports nothing may be cut off; what is started, or held, is not to run."""
    await kit.running_job(machines=1)
    for _ in range(3):
        await without_ranks(kit, LACKS_S - 5.0)
        await kit.beat("m0", [rank(0, 3, kit.clock.now()), rank(1, 3, kit.clock.now())])
        await kit.gateway.exits.tick()
    await without_ranks(kit, 2 * LACKS_S, silent=True)
    kit.gateway.correlator.starting.launching(JOB)
    await without_ranks(kit, 2 * LACKS_S)
    await kit.gateway.correlator.starting.launched(JOB)
    kit.ledger.set_job(JOB, state=JobState.PAUSED)
    await without_ranks(kit, 2 * LACKS_S)
    assert not kit.incidents()


async def test_ranks_of_an_epoch_that_the_ledger_lost_are_ranks(kit: Kit) -> None:
    """A ledger that was restored from a copy knows an older epoch: the job trains, and is not ended for that."""
    await kit.running_job(machines=1)
    for _ in range(8):
        await kit.beat("m0", [rank(0, 3, kit.clock.now()), rank(1, 3, kit.clock.now())], epoch=2)
        await without_ranks(kit, 20.0, silent=True)
    assert not kit.incidents()


async def test_a_report_that_is_read_in_part_lacks_no_ranks(kit: Kit) -> None:
    """An agent of another release may report its job in a way that is left out here: the job trains."""
    await kit.running_job(machines=1)
    for _ in range(8):
        unread = {"job": JOB, "epoch": 2**40}
        body = {"machine": "m0", "incarnation": "i1", "at": kit.clock.now(), "jobs": [unread]}
        await kit.post("/v1/agents/heartbeat", body)
        await without_ranks(kit, 20.0, silent=True)
    assert not kit.incidents()


async def test_machines_without_ranks_are_reported_until_the_ledger_has_it(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the next round, not a minute later; and all of them together."""
    await kit.running_job()
    accepted: list[list[str | None]] = []

    async def accept_all(alerts: Iterable[Alert]) -> list[Outcome]:
        machines = [alert.machine for alert in alerts]
        accepted.append(machines)
        if machines and accepted.count(machines) == 1:
            raise UnavailableError("the ledger is away")
        return []

    monkeypatch.setattr(kit.gateway.correlator, "accept_all", accept_all)

    async def look() -> None:
        for machine in ("m0", "m1"):
            await kit.beat(machine)
        await kit.gateway.exits.tick()

    await look()
    kit.clock.advance(LACKS_S + 3 * kit.settings.heartbeat_s + 1.0)
    with pytest.raises(UnavailableError):
        await look()
    await look()
    await look()
    assert [machines for machines in accepted if machines] == [["m0", "m1"], ["m0", "m1"]]


async def test_exit_that_no_event_reported_is_found_in_heartbeats(kit: Kit) -> None:
    """The event was lost with an earlier gateway: the heartbeat shows the dead rank."""
    await kit.running_job()
    ranks = [rank(0, 3, kit.clock.now()), rank(1, 3, kit.clock.now(), phase="exited", exit_code=-9)]
    await kit.beat("m0", ranks)
    await kit.gateway.exits.tick()
    assert not kit.incidents()
    kit.clock.advance(1.5)
    await kit.gateway.exits.tick()
    await kit.settled()
    (incident,) = kit.incidents()
    assert (incident.machine, incident.rank) == ("m0", 1)

"""Alerts of one job in an overloaded gateway: the root is looked at soon, and decides."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.deployments.gateway.fleet import facts
from holdfast.deployments.gateway.intake import job_queue
from holdfast.deployments.gateway.intake.job_queue import JobQueue
from holdfast.deployments.gateway.intake.outcome import Outcome, What
from holdfast.errors import UnavailableError
from holdfast.models.alert import Alert, AlertKind, IncidentClass
from holdfast.testing.gateway_kit import JOB, Kit


def echo(kit: Kit, number: int) -> Alert:
    """A rank that lost its peer."""
    return Alert(
        kind=AlertKind.RANK_EXIT,
        job=JOB,
        machine="m0",
        rank=0,
        epoch=1,
        incarnation="i1",
        at=kit.clock.now(),
        fingerprint=f"echo-{number}",
        evidence={"cascade": True, "exit_code": 1},
    )


def root(kit: Kit) -> Alert:
    """The root cause."""
    return Alert(
        kind=AlertKind.GPU_LOST, job=JOB, machine="m1", incarnation="i1", at=kit.clock.now(), evidence={}
    )


@pytest.fixture
def slow_ledger(monkeypatch: pytest.MonkeyPatch, kit: Kit) -> list[str]:
    """Each look at the ledger takes half of the time that cascading failures wait for their root cause."""
    looks: list[str] = []
    gather = facts.gather

    def slow(*arguments: object) -> object:
        kit.clock.advance(0.25)
        looks.append("look")
        return gather(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr("holdfast.deployments.gateway.intake.correlate.gather", slow)
    return looks


async def test_a_root_that_came_in_time_decides(kit: Kit, slow_ledger: list[str]) -> None:
    """Although the settle window is over when its turn comes, and the round that settles looks before it."""
    await kit.running_job()
    correlator = kit.gateway.correlator
    await correlator.accept(echo(kit, 0))
    waiting = [asyncio.create_task(correlator.accept(echo(kit, number))) for number in range(1, 5)]
    await asyncio.sleep(0)
    settling = asyncio.create_task(correlator.settle())
    waiting.append(asyncio.create_task(correlator.accept(root(kit))))
    outcomes = await asyncio.gather(*waiting)
    await settling
    await kit.settled()
    assert len(slow_ledger) >= 5
    assert outcomes[-1].outcome is What.OPENED
    (incident,) = kit.incidents()
    assert (incident.incident_class, incident.machine) == (IncidentClass.MACHINE_FAULT, "m1")


async def test_cascading_failures_alone_are_decided_when_their_time_is_over(
    kit: Kit, slow_ledger: list[str]
) -> None:
    """The control: no root cause waits behind them."""
    await kit.running_job()
    correlator = kit.gateway.correlator
    for number in range(5):
        await correlator.accept(echo(kit, number))
    kit.clock.advance(1)
    await correlator.settle()
    await kit.settled()
    (incident,) = kit.incidents()
    assert incident.incident_class is IncidentClass.JOB_CRASH
    assert slow_ledger


async def test_few_cascading_failures_wait_and_the_root_behind_them_only(
    kit: Kit, slow_ledger: list[str]
) -> None:
    """Of a thousand cascading failures at once all but a few are answered without a look at the ledger."""
    await kit.running_job()
    correlator = kit.gateway.correlator
    sent = [asyncio.create_task(correlator.accept(echo(kit, number))) for number in range(1000)]
    sent.append(asyncio.create_task(correlator.accept(root(kit))))
    outcomes: list[Outcome] = await asyncio.gather(*sent)
    await kit.settled()
    assert len(slow_ledger) <= job_queue.MOST_CASCADING + 5
    assert (
        sum(answer.outcome is What.SUPPRESSED for answer in outcomes) >= 1000 - job_queue.MOST_CASCADING - 1
    )
    assert kit.incidents()[0].machine == "m1"


async def test_too_many_others_are_asked_to_come_again() -> None:
    """Bounded, and free again afterwards."""
    known = JobQueue()
    async with known.of_decision(JOB):
        waiting = [asyncio.create_task(_turn(known, float(at))) for at in range(job_queue.OTHERS)]
        await asyncio.sleep(0)
        assert known.root_since(JOB) == 0.0
        with pytest.raises(UnavailableError, match="send it again"):
            await _turn(known, 9.0)
    await asyncio.gather(*waiting)
    assert known.root_since(JOB) is None
    await _turn(known, 9.0)


async def _turn(known: JobQueue, at: float) -> None:
    async with known.of_other(JOB, at):
        await asyncio.sleep(0)


async def test_an_incident_full_of_cascading_failures_and_evidence_takes_the_root(kit: Kit) -> None:
    """Its playbook reads it, and what follows from it is not lost when the incident closes."""
    await kit.running_job()
    correlator = kit.gateway.correlator
    await kit.crash()
    for number in range(300):
        check = {"check": f"c{number}"}
        await correlator.accept(echo(kit, number))
        await correlator.accept(
            root(kit).model_copy(update={"kind": AlertKind.HOST_FAULT, "evidence": check})
        )
    assert (await correlator.accept(echo(kit, 999))).outcome is What.SUPPRESSED
    assert (await correlator.accept(root(kit))).outcome is What.JOINED
    (incident,) = kit.incidents()
    assert [alert.kind for alert in incident.alerts][-1] is AlertKind.GPU_LOST


async def test_a_root_finds_room_among_evidence_that_settles(kit: Kit) -> None:
    """Not only at the cost of cascading failures."""
    await kit.running_job()
    correlator = kit.gateway.correlator
    await correlator.accept(echo(kit, 0))
    for number in range(300):
        check = {"check": f"c{number}"}
        await correlator.accept(
            root(kit).model_copy(update={"kind": AlertKind.HOST_FAULT, "evidence": check})
        )
    assert (await correlator.accept(root(kit))).outcome is What.OPENED

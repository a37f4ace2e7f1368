"""Ranks that are held by an order that was never recorded go on after a while."""

from __future__ import annotations

from holdfast.deployments.gateway.fleet.forgotten_holds import AFTER_S
from holdfast.models.job import JobState
from holdfast.testing.gateway_kit import JOB, Kit, rank

LET_GO = ("let_go_unheld", JOB)


async def look(kit: Kit, seconds: float, *, paused: bool = True) -> None:
    """The job's machines report, and the gateway looks, every few seconds."""
    passed = 0.0
    while passed <= seconds:
        at = kit.clock.now()
        for machine, ranks in (("m0", (0, 1)), ("m1", (2, 3))):
            await kit.beat(machine, [rank(number, 7, at, paused=paused) for number in ranks])
        await kit.gateway.site.refresh()
        await kit.gateway.held.tick()
        await kit.settled()
        kit.clock.advance(5.0)
        passed += 5.0


async def test_ranks_go_on_whose_gateway_was_killed_before_it_recorded_the_hold(kit: Kit) -> None:
    """Else the job would stand for ever: a job that is held is no hang, and there is nothing to resume."""
    await kit.running_job()
    await look(kit, AFTER_S - 10.0)
    assert LET_GO not in kit.acts.calls
    await look(kit, 15.0)
    assert kit.acts.calls.count(LET_GO) == 1


async def test_ranks_that_train_are_left_alone(kit: Kit) -> None:
    """Also those that were held in between."""
    await kit.running_job()
    for _ in range(3):
        await look(kit, AFTER_S - 20.0)
        await look(kit, 0.0, paused=False)
    assert LET_GO not in kit.acts.calls


async def test_a_job_that_a_person_holds_stays_held(kit: Kit) -> None:
    """As the ledger has it."""
    await kit.running_job()
    kit.ledger.set_job(JOB, state=JobState.PAUSED)
    await look(kit, 2 * AFTER_S)
    assert LET_GO not in kit.acts.calls
    assert kit.ledger.job(JOB).state is JobState.PAUSED


async def test_ranks_that_a_playbook_holds_are_left_to_it(kit: Kit) -> None:
    """It may take its time, and its next attempt goes on."""
    await kit.running_job()
    await kit.alert(kind="throughput_decline", epoch=1)
    await look(kit, 2 * AFTER_S)
    assert LET_GO not in kit.acts.calls

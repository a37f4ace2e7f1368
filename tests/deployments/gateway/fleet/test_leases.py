"""Leases of machines that get the gateway's answers late, as heartbeats are answered and lost machines given up."""

from __future__ import annotations

import pytest

from holdfast.models.machine import Machine, MachineState
from holdfast.testing.gateway_kit import Kit

USUAL_S, LONG_S = 5.0, 20.0
LATE_S = 4.0


@pytest.fixture
async def job(kit: Kit) -> Kit:
    await kit.running_job()
    return kit


async def beat(kit: Kit, silence_s: float, machine: str = "m1") -> float:
    """Return the lease that a heartbeat is answered with."""
    answer = await kit.beat(machine, silence_s=silence_s)
    await kit.gateway.site.refresh()
    return float(answer["lease_s"])


async def lowered(kit: Kit) -> Machine:
    """Grant a long lease, and have its record lowered; return the view of the machine from before that."""
    await beat(kit, LATE_S)
    await beat(kit, LATE_S)
    before = kit.gateway.site.fleet.machines["m1"]
    await beat(kit, 0.6)
    kit.clock.advance(LONG_S + 2.0)
    await beat(kit, 0.6)
    assert kit.ledger.machine("m1").lease_s == 0.0
    return before


async def test_a_longer_lease_is_on_record_before_it_is_granted(job: Kit) -> None:
    """An eviction of the machine waits that long; its neighbours keep the usual one."""
    assert await beat(job, LATE_S) == USUAL_S
    assert job.ledger.machine("m1").lease_s == LONG_S
    assert await beat(job, LATE_S) == LONG_S
    assert await beat(job, 0.6, "m0") == USUAL_S
    assert job.ledger.machine("m0").lease_s == 0.0


async def test_agents_receive_what_is_no_delay(job: Kit) -> None:
    """They leave it out of the silence that they report."""
    answer = await job.beat("m1")
    assert answer["longest_delay_s"] == pytest.approx(LONG_S + job.gateway.site.settings.heartbeat_s)


async def test_it_is_shortened_before_its_record_is(job: Kit) -> None:
    """Only when the last long one is over, the record follows."""
    await beat(job, LATE_S)
    assert await beat(job, LATE_S) == LONG_S
    for _ in range(int(LONG_S) + 1):
        job.clock.advance(1.0)
        assert await beat(job, 0.6) == USUAL_S
        assert job.ledger.machine("m1").lease_s == LONG_S
    job.clock.advance(1.0)
    assert await beat(job, 0.6) == USUAL_S
    assert job.ledger.machine("m1").lease_s == 0.0


async def test_a_record_that_was_lowered_holds_at_once(job: Kit) -> None:
    """The view in memory may be older than it: nothing longer is granted before it is recorded again."""
    before = await lowered(job)
    job.gateway.site.fleet.machines["m1"] = before
    assert await beat(job, LATE_S) == USUAL_S
    assert job.ledger.machine("m1").lease_s == LONG_S
    assert await beat(job, LATE_S) == LONG_S


async def test_a_view_from_before_two_changes_grants_no_more_than_the_second(job: Kit) -> None:
    """Lowered, then raised by less: what the ledger had before counts no more."""
    before = await lowered(job)
    await beat(job, 2.0)
    assert job.ledger.machine("m1").lease_s == LONG_S / 2
    job.gateway.site.fleet.machines["m1"] = before
    assert await beat(job, LATE_S) == LONG_S / 2


async def test_another_gateway_lowers_no_record_that_an_earlier_one_may_have_granted(job: Kit) -> None:
    """It waits a long lease from when it began."""
    await beat(job, LATE_S)
    await job.restart()
    assert await beat(job, 0.6) == USUAL_S
    job.clock.advance(LONG_S)
    await beat(job, 0.6)
    assert job.ledger.machine("m1").lease_s == LONG_S
    job.clock.advance(2.0)
    await beat(job, 0.6)
    assert job.ledger.machine("m1").lease_s == 0.0


async def test_a_machine_that_leaves_is_granted_nothing_longer(job: Kit) -> None:
    """Its eviction has begun, and reads the record once."""
    job.ledger.set_machine("m1", state=MachineState.DRAINING)
    assert await beat(job, LATE_S) == USUAL_S
    assert job.ledger.machine("m1").lease_s == 0.0
    assert not job.ledger.set_lease("m0", "i0", LONG_S), "another life of the machine"
    assert not job.ledger.set_lease("m9", "i1", LONG_S)


async def test_a_machine_with_a_long_lease_is_given_up_when_that_is_over(job: Kit) -> None:
    """Until then its ranks may run, and a job that starts again elsewhere would run twice."""
    silent = job.gateway.silent
    await beat(job, LATE_S)
    job.prober.slow.add("m1")
    for _ in range(int(LONG_S) - 1):
        job.clock.advance(1.0)
        await beat(job, 0.6, "m0")
        await silent.tick()
    await job.settled()
    assert job.incidents() == []
    for _ in range(4):
        job.clock.advance(1.0)
        await beat(job, 0.6, "m0")
        await silent.tick()
    await job.settled()
    assert [each.machine for each in job.incidents()] == ["m1"]

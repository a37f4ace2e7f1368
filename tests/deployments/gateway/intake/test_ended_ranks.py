"""A rank that ended with status 0 before the others: its agent reports it at once, heartbeats show it seconds later."""

from __future__ import annotations

import pytest

from holdfast.testing.gateway_kit import JOB, Kit


async def _ends(kit: Kit, machine: str, rank: int, epoch: int = 1) -> None:
    body = {"machine": machine, "incarnation": "i1", "job": JOB, "epoch": epoch, "done": [rank]}
    await kit.post("/v1/agents/events", body)


async def _lose_it(kit: Kit, *ranks: int) -> str:
    for rank in ranks:
        await kit.alert(machine=f"m{rank // 2}", rank=rank, epoch=1, evidence={"cascade": True})
    kit.clock.advance(1)
    await kit.gateway.correlator.settle()
    await kit.settled()
    (incident,) = kit.incidents()
    return incident.reasons[0]


@pytest.mark.parametrize("beats", [False, True])
async def test_it_is_named_where_the_others_lost_it(kit: Kit, *, beats: bool) -> None:
    """Also where no heartbeat came between the end and the incident: on large fleets they are seconds apart."""
    await kit.running_job()
    await _ends(kit, "m0", 1)
    if beats:
        await kit.beat("m1")
    reason = await _lose_it(kit, 0, 2, 3)
    assert (
        reason
        == "rank 1 ended with status 0 before the others, by the job's own doing; ranks [0, 2, 3] lost a peer"
    )


async def test_one_of_an_earlier_epoch_is_not(kit: Kit) -> None:
    """It is no evidence about this one."""
    await kit.running_job()
    await _ends(kit, "m0", 1, epoch=7)
    assert (
        await _lose_it(kit, 0, 2, 3) == "ranks [0, 2, 3] lost a peer, and no rank or machine reported a cause"
    )

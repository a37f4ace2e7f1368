"""A cloud's notice that still stands is reported again and again: it asks for a move when one can be made."""

from __future__ import annotations

from typing import Any

from holdfast.models.alert import IncidentState
from holdfast.testing.gateway_kit import JOB, Kit


async def notice(kit: Kit, machine: str) -> str:
    """The same notice as its machine's agent reports it, and what the gateway makes of it."""
    answer: dict[str, Any] = await kit.alert(
        kind="planned_move",
        machine=machine,
        epoch=1,
        incarnation="i1",
        fingerprint=f"planned_move:{machine}:instance-event-1:e1",
        evidence={"source": "maintenance", "text": "EC2: the host is maintained"},
    )
    return str(answer["outcome"])


async def gave_up(kit: Kit, incident: str) -> None:
    """The playbook found no standby, and the gateway has seen that."""
    kit.ledger.set_incident(incident, state=IncidentState.NEEDS_HUMAN)
    await kit.gateway.requeue.closed(kit.ledger.incident(incident))


async def test_a_notice_that_lacked_a_standby_is_taken_up_when_there_is_one(kit: Kit) -> None:
    """Its machine goes away in minutes; signals of a closed incident are known for longer."""
    await kit.running_job(standbys=0)
    assert await notice(kit, "m1") == "opened"
    assert await notice(kit, "m1") == "duplicate"
    await gave_up(kit, f"{JOB}-1")
    assert await notice(kit, "m1") == "duplicate"  # nothing can be tried yet
    await kit.register("m9")
    await kit.gateway.site.refresh()
    assert await notice(kit, "m1") == "opened"
    assert await notice(kit, "m1") == "duplicate"  # the move is under way
    assert [each.id for each in kit.incidents()] == [f"{JOB}-1", f"{JOB}-2"]

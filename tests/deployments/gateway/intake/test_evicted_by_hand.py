"""A person evicts a machine while a playbook works on its job: one stop for both, and the wish is not lost."""

from __future__ import annotations

from holdfast.models.alert import IncidentClass, IncidentState
from holdfast.testing.gateway_kit import JOB, Kit

WISH = {"reason": "smells burnt", "scope": "cluster", "by": "ann"}


async def _evict(kit: Kit) -> dict[str, object]:
    answer: dict[str, object] = await kit.post("/v1/machines/m0/evict", WISH)
    await kit.settled()
    return answer


async def _crashed(kit: Kit) -> str:
    """Return the incident of a job whose playbook is at work."""
    await kit.running_job()
    await kit.crash()
    await kit.tick(0.1)
    (incident,) = kit.incidents()
    kit.ledger.begin(incident.id, 1, "pause:e1", "pause", {})
    return incident.id


async def test_it_joins_until_the_job_is_being_started(kit: Kit) -> None:
    """Then it waits, as the start goes on with the machine; a person hears which of the two."""
    crash = await _crashed(kit)
    answer = await _evict(kit)
    assert (answer["incident"], answer["outcome"]) == (crash, "joined")
    assert answer["message"] == "done before it starts the job again"
    kit.ledger.begin(crash, 1, "start:after-e1", "start", {})
    answer = await _evict(kit)
    assert answer["outcome"] == "waits"
    assert answer["incident"] != crash


async def test_one_that_came_too_late_for_the_playbook_is_done_afterwards(kit: Kit) -> None:
    """It joined when the playbook had just looked: the machine serves the job still."""
    crash = await _crashed(kit)
    assert (await _evict(kit))["outcome"] == "joined"
    kit.ledger.set_incident(crash, state=IncidentState.RECOVERED)
    await kit.tick(1.0)
    await kit.settled()
    newest = kit.incidents()[-1]
    assert newest.id != crash
    assert newest.incident_class is IncidentClass.MACHINE_FAULT
    assert newest.machine == "m0"
    assert newest.state is IncidentState.OPEN


async def test_one_that_was_done_is_not_done_again(kit: Kit) -> None:
    """The control."""
    crash = await _crashed(kit)
    await _evict(kit)
    kit.ledger.set_job(JOB, machines=("m2", "m1"))
    kit.ledger.set_incident(crash, state=IncidentState.RECOVERED)
    await kit.tick(1.0)
    await kit.settled()
    assert [each.id for each in kit.incidents()] == [crash]


async def test_a_wish_is_not_lost_among_a_storm_of_signs(kit: Kit) -> None:
    """An incident that has evidence enough takes no more of it; a person is heard."""
    crash = await _crashed(kit)
    for number in range(150):
        await kit.alert(
            kind="rank_exit", machine="m1", incarnation="i1", rank=2, epoch=1, fingerprint=f"f{number}"
        )
    assert (await _evict(kit))["outcome"] == "joined"
    assert any(each.evidence.get("by") == "ann" for each in kit.ledger.incident(crash).alerts)

"""An incident of a job that trains on gives way to a signal that its training has stopped."""

from __future__ import annotations

import pytest

from holdfast.errors import StaleError
from holdfast.models.alert import Classification, IncidentClass, IncidentState
from holdfast.testing.gateway_kit import JOB, Kit

SLOW = {"kind": "mfu_decline", "job": JOB, "epoch": 1, "evidence": {"value": 0.3, "median": 0.5}}
KILLED = {"kind": "rank_exit", "job": JOB, "machine": "m1", "incarnation": "i1", "rank": 2, "epoch": 1}


async def _slow(kit: Kit) -> None:
    await kit.running_job()
    await kit.post("/v1/alerts", SLOW | {"at": kit.clock.now()})
    await kit.settled()


def _killed(kit: Kit) -> dict[str, object]:
    return KILLED | {"at": kit.clock.now(), "evidence": {"signal": "SIGKILL"}}


async def test_a_dead_rank_ends_the_search_and_has_its_own_playbook(kit: Kit) -> None:
    """One is dismissed as the other opens; each names the other."""
    await _slow(kit)
    answer = await kit.post("/v1/alerts", _killed(kit))
    await kit.settled()
    assert answer["outcome"] == "opened"
    before, now = kit.incidents()
    assert (before.state, now.state) == (IncidentState.DISMISSED, IncidentState.OPEN)
    assert "job_crash" in before.summary
    assert any(before.id in reason for reason in now.reasons)
    assert f"{now.id}#1" in kit.runs.created


async def test_a_gateway_that_dies_right_after_hands_over_once(kit: Kit) -> None:
    """The next one finds one open incident, and the same signal opens no other."""
    await _slow(kit)
    killed = _killed(kit)
    await kit.post("/v1/alerts", killed)
    await kit.restart()
    assert (await kit.post("/v1/alerts", killed))["outcome"] == "duplicate"
    assert [each.state for each in kit.incidents()] == [IncidentState.DISMISSED, IncidentState.OPEN]


async def test_once_the_job_is_being_stopped_the_dead_rank_is_evidence(kit: Kit) -> None:
    """The playbook starts the job again in any case."""
    await _slow(kit)
    (slow,) = kit.incidents()
    kit.ledger.begin(slow.id, 1, "pause:e1", "pause", {})
    assert (await kit.post("/v1/alerts", _killed(kit)))["outcome"] == "joined"


async def test_what_was_closed_meanwhile_is_not_handed_over(kit: Kit) -> None:
    """Neither is done: the sender reports again."""
    await _slow(kit)
    (slow,) = kit.incidents()
    kit.ledger.set_incident(slow.id, state=IncidentState.NEEDS_HUMAN)
    crash = Classification(incident_class=IncidentClass.JOB_CRASH, confidence=1.0, reasons=("killed",))
    with pytest.raises(StaleError):
        kit.ledger.open_incident(JOB, crash, 1, [], 0.0, instead_of=(slow.id, "over"))
    assert [each.id for each in kit.incidents()] == [slow.id]


@pytest.mark.parametrize("by_hand", [False, True])
async def test_what_may_be_restored_is_handed_over_too(kit: Kit, by_hand: bool) -> None:
    """A person evicts a machine, or a rank dies, while replicas differ: their newest states are restored by neither."""
    await kit.running_job()
    evidence = {"step": 16, "last_good_step": 12, "ranks": [2], "paths": ["model.w"], "detail": "other bits"}
    await kit.alert(
        kind="replica_differs", rank=2, machine="m1", incarnation="i1", epoch=1, evidence=evidence
    )
    (before,) = kit.incidents()
    assert before.incident_class is IncidentClass.SILENT_CORRUPTION
    if by_hand:
        await kit.post("/v1/machines/m0/evict", {"reason": "smells burnt", "by": "ann"})
    else:
        await kit.post("/v1/alerts", _killed(kit))
    await kit.settled()
    before, now = kit.incidents()
    assert (before.state, now.state) == (IncidentState.DISMISSED, IncidentState.OPEN)
    assert now.last_good_step == 12

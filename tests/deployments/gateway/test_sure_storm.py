"""A storm of sure signs: Xid 79 of all machines in one second. One sensor is wrong, not a thousand GPUs."""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from pathlib import Path

import httpx

from holdfast.models.alert import IncidentClass, IncidentState
from holdfast.models.job import JobSpec, JobState
from holdfast.testing.gateway_kit import JOB, Kit, start_epoch
from holdfast.testing.play import play
from holdfast.testing.scenario import Scenario

MACHINES = 1000
OTHER = "bert"


async def test_heartbeats_are_answered_and_steps_go_on_while_sure_signs_pour_in(kit: Kit) -> None:
    """One incident, one run, no eviction; another job's steps count, and no heartbeat waits for the last alert."""
    for number in range(MACHINES + 2):
        await kit.register(f"m{number}")
    jobs = {JOB: MACHINES, OTHER: 2}
    for name, machines in jobs.items():
        kit.ledger.add_job(
            JobSpec(name=name, script="train.py", machines=machines, ranks_per_machine=1), "v1"
        )
        kit.ledger.add_version(name, "v1", "key", "first")
        claimed = kit.ledger.claim_standbys(name, machines)
        kit.ledger.set_job(name, machines=[each.name for each in claimed], state=JobState.RUNNING)
        start_epoch(kit.ledger, name)
    await kit.gateway.site.refresh()
    hit = kit.ledger.job(JOB).machines
    sign = {"kind": "xid", "job": JOB, "incarnation": "i1", "at": kit.clock.now(), "evidence": {"xid": 79}}
    alerts = [asyncio.create_task(kit.http.post("/v1/alerts", json=sign | {"machine": name})) for name in hit]
    await asyncio.sleep(0)
    beats = [_beat(kit, name, name in hit) for name in (*hit[:200], *kit.ledger.job(OTHER).machines)]
    answers = await asyncio.gather(*beats)
    assert not all(each.done() for each in alerts), "the storm was over before any heartbeat came"
    assert {answer.status_code for answer in answers} == {200}
    first = await asyncio.gather(*alerts)
    # More than may wait at once: their agents are asked to send them again, and do.
    late = [
        name
        for name, answer in zip(hit, first, strict=True)
        if answer.status_code == HTTPStatus.SERVICE_UNAVAILABLE
    ]
    again = [await kit.http.post("/v1/alerts", json=sign | {"machine": name}) for name in late]
    taken = [answer.json() for answer in (*first, *again) if answer.status_code == HTTPStatus.OK]
    assert len(taken) == MACHINES
    outcomes = [each["outcome"] for each in taken]
    assert outcomes.count("opened") == 1
    assert set(outcomes) <= {"opened", "joined", "suppressed", "duplicate", "settling"}
    (incident,) = kit.incidents()
    await kit.settled()
    assert (incident.job, incident.incident_class) == (JOB, IncidentClass.MACHINE_FAULT)
    assert len(kit.runs.created) == 1
    assert kit.ledger.epochs(OTHER)[-1].last_step == 7
    assert kit.ledger.job(OTHER).state is JobState.RUNNING


async def _beat(kit: Kit, machine: str, hit: bool) -> httpx.Response:
    marks = [{"step": 7, "at": kit.clock.now()}]
    run = {"job": JOB if hit else OTHER, "epoch": 1, "ranks": [], "marks": marks}
    body = {"machine": machine, "incarnation": "i1", "at": kit.clock.now(), "jobs": [run]}
    return await kit.http.post("/v1/agents/heartbeat", json=body)


async def test_the_breaker_holds_all_of_them(tmp_path: Path) -> None:
    """No machine is evicted, and the incident states why; the next attempt starts on the machines that the job has."""
    signals = [{"kind": "xid", "machine": f"m{number}", "evidence": {"xid": 79}} for number in range(100)]
    storm = {
        "name": "a-storm-of-sure-signs",
        "setup": {"machines": 100, "ranks": 1, "standbys": 20},
        "signals": signals,
    }
    played = await play(Scenario.model_validate(storm), tmp_path)
    assert played.evicted == {}
    (incident,) = played.incidents
    assert incident.state is IncidentState.NEEDS_HUMAN
    assert "more than may be evicted at once" in incident.summary
    assert "evict" not in played.kinds

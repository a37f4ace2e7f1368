"""Incidents that met a limit are tried again: by time, and at once when what they miss appears."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.deployments.gateway.runs.flow_runs import RunPhase
from holdfast.models.alert import AlertKind, Incident, IncidentClass, IncidentState
from holdfast.models.job import JobState
from holdfast.models.machine import MachineState
from holdfast.models.missing import Missing
from holdfast.models.wait import Wait
from holdfast.testing.gateway_kit import JOB, Kit

FIRST, SECOND = f"{JOB}-1#1", f"{JOB}-1#2"


async def given_up(kit: Kit, missing: Missing = Missing.CHANGE, *, standbys: int = 1, **alert: object) -> str:
    """An incident whose playbook met a limit just now."""
    await kit.running_job(standbys=standbys)
    await (kit.alert(**alert) if alert else kit.crash())
    (incident,) = kit.incidents()
    now = kit.clock.now()
    kit.ledger.put_wait(
        Wait(incident_id=incident.id, job=JOB, missing=missing, why="a limit", since=now, next_at=now + 60)
    )
    kit.ledger.give_up(incident.id, "a limit")
    kit.runs.set(FIRST, RunPhase.ENDED)
    return incident.id


async def test_time_alone_is_a_next_attempt(kit: Kit) -> None:
    """Not before its time, and once."""
    incident = await given_up(kit)
    await kit.look_again(50)
    assert kit.runs.created == [FIRST]
    await kit.look_again(11)
    await kit.look_again()
    assert kit.runs.created == [FIRST, SECOND]
    assert kit.ledger.incident(incident).state is IncidentState.OPEN
    assert kit.ledger.job(JOB).state is JobState.RECOVERING


async def test_a_gateway_that_is_killed_takes_up_what_waits(kit: Kit) -> None:
    """The ledger has it."""
    await given_up(kit)
    await kit.restart()
    await kit.look_again(61)
    assert kit.runs.created == [FIRST, SECOND]


async def test_the_second_job_that_wanted_the_last_standby_gets_the_next(kit: Kit) -> None:
    """As soon as one stands by."""
    await given_up(kit, Missing.STANDBY, standbys=0)
    kit.ledger.set_machine("m1", state=MachineState.CORDONED, job=None)
    await kit.look_again(5)
    assert kit.runs.created == [FIRST]
    await kit.register("m9")
    await kit.look_again()
    assert kit.runs.created == [FIRST, SECOND]


async def test_machines_that_a_person_evicts_are_no_longer_in_the_way(kit: Kit) -> None:
    """A person did the act that the breaker forbade: the job must not wait for the standbys that are there."""
    await given_up(kit, Missing.EVICTIONS, standbys=2)
    await kit.look_again(5)
    assert kit.runs.created == [FIRST]
    await kit.post("/v1/machines/m1/evict", {"reason": "its agent is dead"})
    await kit.look_again()
    assert kit.runs.created == [FIRST, SECOND]


async def test_machines_that_answer_again_after_a_silence_count(kit: Kit) -> None:
    """Not those that were heard all the time: then something else is in the way."""
    await given_up(kit, Missing.CONTACT)
    for name in ("m0", "m1"):
        await kit.beat(name)
    await kit.look_again(0)
    assert kit.runs.created == [FIRST]
    await kit.look_again(20)
    for name in ("m0", "m1"):
        await kit.beat(name)
    await kit.look_again(0)
    assert kit.runs.created == [FIRST, SECOND]


@pytest.mark.parametrize("state", [JobState.RUNNING, JobState.STOPPED])
async def test_what_a_person_took_over_is_not_started(kit: Kit, state: JobState) -> None:
    """By whatever means the job left its state."""
    await given_up(kit)
    kit.ledger.set_job(JOB, state=state)
    await kit.look_again(100)
    assert kit.runs.created == [FIRST]
    assert kit.ledger.waits() == []


async def test_a_job_that_a_person_starts_just_now_is_not_started_twice(kit: Kit) -> None:
    """Its state changes when all ranks were started."""
    await given_up(kit)

    async def meanwhile() -> None:
        await kit.look_again(100)

    kit.acts.during_launch = meanwhile
    await kit.post(f"/v1/jobs/{JOB}/resume")
    await kit.look_again(100)
    assert kit.runs.created == [FIRST]


async def _ran_out(kit: Kit, *, runs_on: bool = False) -> str:
    """A question about m1 that got no answer in time."""
    signal: dict[str, Any] = {"kind": "gpu_lost", "machine": "m1", "incarnation": "i1"}
    if runs_on:
        signal = {"kind": "mfu_decline", "epoch": 1, "evidence": {"value": 0.3, "median": 0.5}}
    incident = await given_up(kit, Missing.APPROVAL, **signal)
    kit.ledger.set_incident(incident, state=IncidentState.OPEN)
    kit.ledger.begin(incident, 1, "approve:m1", "approve", {"question": "?", "target": "m1"})
    kit.ledger.finish(incident, "approve:m1", {"approve": False, "by": "the policy file"})
    kit.ledger.give_up(incident, "refused")
    (wait,) = kit.ledger.waits()
    kit.ledger.put_wait(wait.model_copy(update={"runs_on": runs_on}))
    if runs_on:
        kit.ledger.set_job(JOB, state=JobState.RUNNING)
    await kit.gateway.site.refresh()
    return incident


async def _evict(kit: Kit) -> tuple[str, str]:
    answer = await kit.post("/v1/machines/m1/evict", {"reason": "seen it", "by": "ann"})
    await kit.settled()
    return answer["incident"], answer["outcome"]


async def test_to_evict_the_machine_that_was_asked_about_is_a_yes(kit: Kit) -> None:
    """No second incident is opened for it."""
    incident = await _ran_out(kit)
    assert await _evict(kit) == (incident, "joined")
    assert len(kit.incidents()) == 1


async def test_where_the_job_trains_an_eviction_by_hand_is_done_by_itself(kit: Kit) -> None:
    """The next look for a slow machine might find another one, or none, and m1 would stay."""
    incident = await _ran_out(kit, runs_on=True)
    evicting, outcome = await _evict(kit)
    assert (evicting != incident, outcome) == (True, "opened")
    assert kit.ledger.incident(evicting).incident_class is IncidentClass.MACHINE_FAULT


async def test_a_machine_that_restarted_since_it_was_accused_is_evicted_by_itself(kit: Kit) -> None:
    """The yes is about its former life, which the playbook spares: what the person asked for names the present one."""
    incident = await _ran_out(kit)
    await kit.register("m1", "i2")
    await kit.settled()
    assert await _evict(kit) == (incident, "joined")
    known = kit.ledger.incident(incident)
    assert known.state is IncidentState.OPEN
    assert [each.incarnation for each in known.alerts if each.evidence.get("by") == "ann"] == ["i2"]


async def test_a_machine_that_restarted_while_it_was_asked_about_is_looked_at_once_the_question_ran_out(
    kit: Kit,
) -> None:
    """Not an hour later: its job stands for nothing."""
    await kit.running_job()
    await kit.alert(kind="gpu_lost", machine="m1", incarnation="i1")
    (incident,) = kit.incidents()
    kit.ledger.begin(incident.id, 1, "approve:m1", "approve", {"question": "?", "target": "m1"})
    kit.clock.advance(60)
    await kit.register("m1", "i2")
    await kit.settled()
    kit.clock.advance(60)
    kit.ledger.finish(incident.id, "approve:m1", {"approve": False, "by": "the policy file"})
    now, why = kit.clock.now(), "no answer"
    wait = Wait(
        incident_id=incident.id, job=JOB, missing=Missing.APPROVAL, why=why, since=now, next_at=now + 3600
    )
    kit.ledger.put_wait(wait)
    kit.ledger.give_up(incident.id, why)
    kit.runs.set(FIRST, RunPhase.ENDED)
    await kit.look_again(5)
    assert kit.runs.created == [FIRST, SECOND]


async def test_a_late_approval_is_taken(kit: Kit) -> None:
    """The answer is in the ledger under the key that the next round asks for."""
    incident = await given_up(kit, Missing.APPROVAL)
    await kit.post(f"/v1/incidents/{incident}/approve", {"approve": False, "by": "ann"}, status=409)
    kit.ledger.set_incident(incident, state=IncidentState.OPEN)
    kit.ledger.begin(incident, 1, "approve:m1", "approve", {"question": "?", "target": "m1"})
    kit.ledger.finish(incident, "approve:m1", {"approve": False, "by": "the policy file"})
    kit.ledger.give_up(incident, "refused")
    await kit.post(f"/v1/incidents/{incident}/approve", {"approve": True, "by": "ann", "reason": "late"})
    await kit.settled()
    answers = {a.key: a.result["approve"] for a in kit.ledger.actions(incident) if a.kind == "approve"}
    assert answers == {"approve:m1": False, "approve:m1r1": True}
    assert kit.runs.created == [FIRST, SECOND]


def suspend(kit: Kit, incident: Incident) -> None:
    """Its run asks whether m1 may be evicted, and waits."""
    intent = {
        "question": "evict m1?",
        "deadline": kit.clock.now() + 3600,
        "default": "refuse",
        "target": "m1",
    }
    kit.ledger.begin(incident.id, 1, "approve:m1", "approve", intent)
    kit.runs.set(FIRST, RunPhase.SUSPENDED)


async def test_an_alert_that_is_resolved_answers_the_question_about_it(kit: Kit) -> None:
    """Nothing has to be evicted for it any more."""
    await kit.running_job()
    fault = {"kind": AlertKind.GPU_LOST.value, "machine": "m1", "incarnation": "i1"}
    await kit.alert(**fault)
    (incident,) = kit.incidents()
    suspend(kit, incident)
    await kit.tick()
    assert kit.runs.resumed == []
    await kit.alert(status=409, firing=False, **fault)
    await kit.tick()
    ((run, answer),) = kit.runs.resumed
    assert (run, answer["approve"], answer["by"]) == (FIRST, False, "the monitor")


async def test_end_of_a_rule_answers_no_question_about_a_fault_that_is_proven(kit: Kit) -> None:
    """Prometheus' rules of Xids and lost GPUs end when their window has passed: the GPU is as it was."""
    await kit.running_job()
    sent = {
        "labels": {"kind": "xid", "machine": "m1", "incarnation": "i1", "xid": "79", "device": "GPU 3"},
        "startsAt": "1970-01-12T13:46:40Z",
        "fingerprint": "abc",
    }
    for status in ("firing", "resolved"):
        body = {"version": "4", "status": status, "alerts": [{**sent, "status": status}]}
        await kit.post("/v1/alerts/alertmanager", body)
        await kit.settled()
        (incident,) = kit.incidents()
        if status == "firing":
            suspend(kit, incident)
    await kit.tick()
    assert kit.runs.resumed == []
    assert all(alert.firing for alert in kit.ledger.alerts(incident.id))


async def test_what_is_over_is_that_device_in_that_life_of_the_machine(kit: Kit) -> None:
    """Two GPUs are lost: the question stands until neither is."""
    await kit.running_job()

    def lost(device: str, life: str = "i1") -> dict[str, object]:
        evidence = {"device": device}
        return {"kind": "gpu_lost", "machine": "m1", "incarnation": life, "evidence": evidence}

    for device in ("GPU 1", "GPU 2"):
        await kit.alert(fingerprint=device, **lost(device))
    (incident,) = kit.incidents()
    assert len(incident.alerts) == 2
    suspend(kit, incident)
    for over in (lost("GPU 1"), lost("GPU 2", "i0")):
        await kit.alert(status=409, firing=False, **over)
        await kit.tick()
        assert kit.runs.resumed == []
    await kit.alert(status=409, firing=False, **lost("GPU 2"))
    await kit.tick()
    ((_, answer),) = kit.runs.resumed
    assert (answer["approve"], answer["by"]) == (False, "the monitor")


async def test_an_alert_that_was_resolved_before_the_gateway_was_restarted_answers_the_question(
    kit: Kit,
) -> None:
    """The run is suspended only afterwards: what was heard before is not lost."""
    await kit.running_job()
    fault = {"kind": AlertKind.GPU_LOST.value, "machine": "m1", "incarnation": "i1"}
    await kit.alert(**fault)
    (incident,) = kit.incidents()
    kit.clock.advance(1.0)
    await kit.alert(status=409, firing=False, **fault)
    await kit.alert(status=409, firing=False, kind=AlertKind.GPU_LOST.value, machine="m0", incarnation="i1")
    await kit.restart()
    suspend(kit, incident)
    await kit.tick()
    ((run, answer),) = kit.runs.resumed
    assert (run, answer["approve"], answer["by"]) == (FIRST, False, "the monitor")
    assert [each.machine for each in kit.ledger.alerts(incident.id) if not each.firing] == ["m1"]


def waits_while_it_trains(kit: Kit, incident: Incident, missing: Missing, for_s: float) -> None:
    """Close an incident that waits so long; its job was not stopped."""
    now = kit.clock.now()
    wait = Wait(
        incident_id=incident.id,
        job=JOB,
        missing=missing,
        why="it is not there",
        since=now,
        next_at=now + for_s,
        runs_on=True,
    )
    kit.ledger.put_wait(wait)
    kit.ledger.set_incident(incident.id, state=IncidentState.NEEDS_HUMAN)


async def test_a_job_that_runs_on_is_not_worked_on_again_until_then(kit: Kit) -> None:
    """Further signals of the same class are held back; others are not."""
    await kit.running_job()
    await kit.alert(kind="throughput_decline", epoch=1)
    (incident,) = kit.incidents()
    assert incident.incident_class is IncidentClass.FAIL_SLOW
    waits_while_it_trains(kit, incident, Missing.STANDBY, 60)
    kit.ledger.set_machine("m2", state=MachineState.CORDONED)
    await kit.look_again(5)
    again = await kit.alert(kind="throughput_decline", epoch=1, fingerprint="later")
    assert again["outcome"] == "ignored"
    assert incident.id in again["message"]
    await kit.look_again(60)
    again = await kit.alert(kind="throughput_decline", epoch=1, fingerprint="much later")
    assert again["outcome"] == "opened"


@pytest.mark.parametrize(("machine", "outcome"), [("m0", "ignored"), ("m1", "opened")])
async def test_another_machine_that_is_slow_is_not_held_back(kit: Kit, machine: str, outcome: str) -> None:
    """The waiting incident is about m0; its pauses may be an hour long."""
    await kit.running_job()
    signal: dict[str, Any] = {"kind": "straggler", "epoch": 1, "evidence": {"value": 2.0, "median": 1.0}}
    await kit.alert(**signal, machine="m0", rank=0)
    (incident,) = kit.incidents()
    waits_while_it_trains(kit, incident, Missing.APPROVAL, 3600)
    await kit.look_again(5)
    again = await kit.alert(**signal, machine=machine, rank=int(machine[1]), fingerprint="later")
    assert again["outcome"] == outcome

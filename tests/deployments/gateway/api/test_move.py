"""Requests to leave a machine: what is taken, what waits, what goes first."""

from __future__ import annotations

from holdfast.models.alert import IncidentClass, IncidentState
from holdfast.models.job import JobState
from holdfast.models.machine import MachineState
from holdfast.testing.gateway_kit import JOB, Kit, start_epoch

MOVE = f"/v1/jobs/{JOB}/move"


async def test_a_request_opens_an_incident_and_the_job_runs_on(kit: Kit) -> None:
    """Its machine is that of the request; the job's state is as before."""
    job = await kit.running_job()
    answer = await kit.post(MOVE, {"machine": job.machines[1], "source": "maintenance", "reason": "rack 4"})
    assert answer["outcome"] == "opened"
    (incident,) = kit.incidents()
    assert incident.incident_class is IncidentClass.PLANNED_MOVE
    assert (incident.machine, incident.reasons) == (
        job.machines[1],
        (f"asked to leave {job.machines[1]}, maintenance: rack 4",),
    )
    assert kit.ledger.job(JOB).state is JobState.RUNNING


async def test_requests_that_cannot_be_met_are_refused(kit: Kit) -> None:
    """Each with what is wrong."""
    job = await kit.running_job()
    answer = await kit.post(MOVE, {"machine": "m77"}, status=409)
    assert "m77 does not serve job" in answer["message"]
    answer = await kit.post(MOVE, {"machine": job.machines[0], "to": job.machines[1]}, status=409)
    assert "not a standby" in answer["message"]
    await kit.post(MOVE, {"machine": job.machines[0], "source": "whim"}, status=422)
    await kit.post(MOVE, {"machine": job.machines[0], "deadline_s": 0}, status=422)
    kit.ledger.set_job(JOB, state=JobState.PAUSED)
    answer = await kit.post(MOVE, {"machine": job.machines[0]}, status=409)
    assert "only a running job" in answer["message"]
    assert kit.incidents() == []


async def test_one_move_at_a_time(kit: Kit) -> None:
    """The second waits, and is taken up when the first is over, in whatever epoch."""
    job = await kit.running_job()
    await kit.post(MOVE, {"machine": job.machines[0]})
    assert (await kit.post(MOVE, {"machine": job.machines[1]}))["outcome"] == "waits"
    await kit.tick()
    assert kit.runs.created == [f"{JOB}-1#1"]
    start_epoch(kit.ledger, JOB)
    kit.close_incident(f"{JOB}-1")
    await kit.tick()
    assert kit.runs.created == [f"{JOB}-1#1", f"{JOB}-2#1"]


async def test_a_fault_goes_before_a_move(kit: Kit) -> None:
    """The move is dismissed, whether it was begun or not; its run can act no more."""
    job = await kit.running_job()
    await kit.post(MOVE, {"machine": job.machines[0]})
    assert (await kit.crash())["outcome"] == "opened"
    first, second = kit.incidents()
    assert first.state is IncidentState.DISMISSED
    assert "came first" in first.summary
    assert second.incident_class is not IncidentClass.PLANNED_MOVE


async def test_a_move_waits_for_a_recovery(kit: Kit) -> None:
    """Announced while the job recovers, it is kept; it is over when the machine left the job meanwhile."""
    job = await kit.running_job()
    await kit.crash()
    alert = {
        "kind": "planned_move",
        "job": JOB,
        "machine": job.machines[0],
        "at": kit.clock.now(),
        "evidence": {"source": "preemption"},
    }
    kit.ledger.set_job(JOB, state=JobState.RECOVERING)
    assert (await kit.post("/v1/alerts", alert))["outcome"] == "waits"
    kit.ledger.set_job(JOB, machines=("m9", *job.machines[1:]), state=JobState.RUNNING)
    start_epoch(kit.ledger, JOB)
    kit.close_incident(f"{JOB}-1")
    await kit.tick()
    assert kit.incidents()[1].state is IncidentState.DISMISSED


async def test_a_standby_that_will_be_taken_away_leaves_the_pool(kit: Kit) -> None:
    """A job must not be moved to it; a request by hand is no reason."""
    await kit.running_job(standbys=2)
    for source, outcome in (("by_hand", "ignored"), ("preemption", "cordoned")):
        alert = {
            "kind": "planned_move",
            "machine": "m3",
            "at": kit.clock.now(),
            "evidence": {"source": source},
        }
        answer = await kit.post("/v1/alerts", alert | {"fingerprint": source})
        assert answer["outcome"] == outcome
    assert kit.ledger.machine("m3").state is MachineState.CORDONED
    assert kit.incidents() == []


async def test_a_notice_of_the_machines_agent_asks_for_a_move(kit: Kit) -> None:
    """As a detector sends it: repeated, it is the same; in a new epoch it is taken up again."""
    job = await kit.running_job()
    known = kit.ledger.machine(job.machines[0])
    alert = {
        "kind": "planned_move",
        "job": JOB,
        "epoch": 1,
        "machine": known.name,
        "incarnation": known.incarnation,
        "at": kit.clock.now(),
        "fingerprint": "spot:e1",
        "evidence": {"source": "preemption", "deadline_at": kit.clock.now() + 120},
    }
    assert (await kit.post("/v1/alerts", alert))["outcome"] == "opened"
    assert (await kit.post("/v1/alerts", alert))["outcome"] == "duplicate"
    await kit.crash()
    start_epoch(kit.ledger, JOB)
    kit.close_incident(f"{JOB}-2")
    again = alert | {"epoch": 2, "fingerprint": "spot:e2", "at": kit.clock.now()}
    assert (await kit.post("/v1/alerts", again))["outcome"] == "opened"
    assert kit.incidents()[-1].incident_class is IncidentClass.PLANNED_MOVE

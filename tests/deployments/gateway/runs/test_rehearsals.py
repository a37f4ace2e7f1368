"""Machines' reports of rehearsed restores: an incident beside the training, which gives way and may resolve itself."""

from __future__ import annotations

import pytest

from holdfast.deployments.gateway.runs.flow_runs import RunPhase
from holdfast.models.alert import IncidentClass, IncidentState
from holdfast.models.job import JobState
from holdfast.models.rehearsal import RehearsalOutcome, Rehearsed
from holdfast.models.setback import Place, Setback
from holdfast.policies.restore.rehearsed import restorable
from holdfast.testing.gateway_kit import JOB, Kit

FAILED = Rehearsed(failed="loader.buffer: gone (rank 1 at step 4)")


async def look(kit: Kit) -> None:
    await kit.gateway.rehearsals.tick()
    await kit.settled()


async def test_a_failure_in_heartbeats_is_an_incident_and_a_success_ends_it(kit: Kit) -> None:
    """Once per epoch, whether or not the agent's own word arrived; the job runs all the time."""
    await kit.running_job()
    await kit.beat("m0", rehearsed=FAILED)
    await kit.beat("m1", rehearsed=Rehearsed(step=4))
    (job,) = (await kit.get("/v1/status"))["jobs"]
    assert job["restore"]["told"] == f"NOT RESTORABLE: {FAILED.failed}"
    (job,) = (await kit.get("/v1/page/overview"))["jobs"]
    assert job["restore"]["outcome"] == "failed"
    await look(kit)
    (incident,) = kit.incidents()
    assert incident.incident_class is IncidentClass.CHECKPOINT_UNRESTORABLE
    kit.ledger.set_incident(incident.id, state=IncidentState.NEEDS_HUMAN, summary="look at it")
    for _ in range(3):
        await look(kit)
    assert len(kit.incidents()) == 1
    assert kit.ledger.job(JOB).state is JobState.RUNNING

    await kit.beat("m0", rehearsed=Rehearsed(step=9))
    await look(kit)
    (incident,) = kit.incidents()
    assert incident.state is IncidentState.RECOVERED
    assert incident.summary.startswith("restore proven at step 4 since")


async def test_saves_that_fail_are_in_the_status_and_on_the_page(kit: Kit) -> None:
    """No incident: the job runs, and the failure is shown until a machine reports a save that worked."""
    await kit.running_job()
    full = Setback(place=Place.DISK, count=3, since=5.0, reason="[Errno 28] No space left on device")
    await kit.beat("m1", setbacks=(full,))
    for path in ("/v1/status", "/v1/page/overview"):
        (job,) = (await kit.get(path))["jobs"]
        (found,) = job["unsaved"]
        assert (found["place"], found["machines"], found["since"]) == ("disk", ["m1"], 5.0)
        assert found["told"].endswith("No space left on device")
    await look(kit)
    assert kit.incidents() == []
    await kit.beat("m1", rehearsed=Rehearsed(step=9))
    (job,) = (await kit.get("/v1/status"))["jobs"]
    assert job["unsaved"] == []


async def test_attempts_that_are_spent_leave_the_job_running(kit: Kit) -> None:
    """A playbook that never comes to its end asks a person; nothing is halted."""
    await kit.running_job()
    await kit.alert(kind="unrestorable", rank=1, epoch=1, machine="m0", incarnation="i1")
    for attempt in range(1, 8):
        if kit.incidents()[0].state is not IncidentState.OPEN:
            break
        kit.ledger.set_incident(f"{JOB}-1", first_task_at=kit.clock.now())
        if attempt > 1:
            kit.ledger.begin(f"{JOB}-1", attempt, f"attempt:{attempt}", "attempt", {})
        kit.runs.set(f"{JOB}-1#{attempt}", RunPhase.FAILED)
        await kit.tick(60)
    (incident,) = kit.incidents()
    assert incident.state is IncidentState.NEEDS_HUMAN
    assert "the job runs on" in incident.summary
    assert kit.ledger.job(JOB).state is JobState.RUNNING
    assert [call for call in kit.acts.calls if call[0] == "halt"] == []


async def test_a_crash_takes_its_place(kit: Kit) -> None:
    """At once: the crash's playbook does not wait for the proofs, and the finding stays to be read."""
    await kit.running_job()
    await kit.alert(kind="unrestorable", rank=1, epoch=1, machine="m0", incarnation="i1")
    await kit.crash()
    first, second = kit.incidents()
    assert first.state is IncidentState.NEEDS_HUMAN
    assert "job_crash came first" in first.summary
    assert (second.incident_class, second.state) == (IncidentClass.JOB_CRASH, IncidentState.OPEN)
    assert kit.runs.created == [f"{JOB}-1#1", f"{JOB}-2#1"]


async def test_found_during_another_incident_it_joins(kit: Kit) -> None:
    """One playbook acts on a job at a time."""
    await kit.running_job()
    await kit.crash()
    answer = await kit.alert(kind="unrestorable", rank=1, epoch=1, machine="m0", incarnation="i1")
    assert answer["outcome"] == "joined"
    assert len(kit.incidents()) == 1


@pytest.mark.parametrize(
    ("reports", "outcome", "text"),
    [
        ({}, RehearsalOutcome.UNTESTED, "not tested: no rank runs"),
        (
            {"m0": None},
            RehearsalOutcome.UNTESTED,
            "not tested: no rehearsal of all ranks yet in this epoch (1 of 1",
        ),
        ({"m0": Rehearsed(step=3), "m1": None}, RehearsalOutcome.UNTESTED, "(1 of 2 machines to come)"),
        (
            {"m0": Rehearsed(step=3), "m1": Rehearsed(step=2)},
            RehearsalOutcome.PROVEN,
            "restore proven at step 2",
        ),
        (
            {"m0": Rehearsed(step=3), "m1": FAILED},
            RehearsalOutcome.FAILED,
            "NOT RESTORABLE: loader.buffer: gone",
        ),
        (
            {"m0": Rehearsed(step=3), "m1": Rehearsed(untested="no room")},
            RehearsalOutcome.UNTESTED,
            "not tested: no room",
        ),
        (
            {"m0": Rehearsed(step=3, untested="a.b: own")},
            RehearsalOutcome.PROVEN,
            "at step 3; not tested: a.b: own",
        ),
    ],
)
def test_one_answer_is_made_of_what_machines_say(
    reports: dict[str, Rehearsed | None], outcome: RehearsalOutcome, text: str
) -> None:
    """A failure anywhere counts; proven only when every machine is."""
    found = restorable(reports)
    assert found.outcome is outcome
    assert text in found.told

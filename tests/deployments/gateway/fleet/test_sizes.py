"""Sizes of jobs: what people may ask for, and growth by itself."""

from __future__ import annotations

import pytest

from holdfast.deployments.gateway.fleet.facts import give_way
from holdfast.models.alert import Alert, AlertKind, Classification, Incident, IncidentClass, IncidentState
from holdfast.models.job import Elastic, Job, JobState
from holdfast.models.machine import MachineState, Scope
from holdfast.models.missing import Missing
from holdfast.models.wait import Wait
from holdfast.operations import flaps
from holdfast.policies.pool import planned_move
from holdfast.testing.gateway_kit import JOB, Kit, start_epoch

SETTLED_S = 31.0


async def elastic(kit: Kit, machines: int = 2, want: int = 3, standbys: int = 1) -> Job:
    """A job that runs on ``machines``, and wants more."""
    job = await kit.running_job(machines=machines, standbys=standbys)
    sizes = Elastic(min=1, want=want, max=4)
    job = kit.ledger.set_job(JOB, spec=job.spec.model_copy(update={"elastic": sizes}))
    await kit.gateway.site.refresh()
    return job


async def look(kit: Kit, seconds: float = SETTLED_S) -> None:
    kit.clock.advance(seconds)
    await kit.gateway.site.refresh()
    await kit.gateway.sizes.tick()
    await kit.settled()


def asked(kit: Kit) -> list[object]:
    """The sizes that playbooks were started for."""
    found = [each for each in kit.incidents() if each.incident_class is IncidentClass.SCALE_JOB]
    return [each.alerts[0].evidence["machines"] for each in found]


async def test_a_person_scales_a_job(kit: Kit) -> None:
    await elastic(kit)
    await kit.post(f"/v1/jobs/{JOB}/scale", {"machines": 1})
    await kit.settled()
    assert asked(kit) == [1]
    assert kit.runs.created == [f"{JOB}-1#1"]


async def test_what_cannot_be_is_refused_at_once(kit: Kit) -> None:
    """Nothing is started for it."""
    await elastic(kit)
    refusal = await kit.post(f"/v1/jobs/{JOB}/scale", {"machines": 5}, status=409)
    assert "machines = 5: expected 1 to 4, as the job file says" in str(refusal)
    same = await kit.post(f"/v1/jobs/{JOB}/scale", {"machines": 2})
    assert "has 2 machines already" in str(same)
    kit.ledger.set_job(JOB, state=JobState.STOPPED)
    await kit.gateway.site.refresh()
    assert "is stopped" in str(await kit.post(f"/v1/jobs/{JOB}/scale", {"machines": 1}, status=409))
    assert asked(kit) == []


@pytest.mark.parametrize(
    ("state", "first"),
    [(JobState.PAUSED, True), (JobState.FAILED, True), (JobState.STOPPED, True), (JobState.DONE, False)],
)
async def test_a_job_that_does_not_run_is_not_scaled(kit: Kit, state: JobState, *, first: bool) -> None:
    """A hold is its person's; what may be done about it is in the answer."""
    await elastic(kit)
    kit.ledger.set_job(JOB, state=state)
    answer = str(await kit.post(f"/v1/jobs/{JOB}/scale", {"machines": 1}, 409))
    assert f"job {JOB} is {state}: only a running job" in answer
    assert (f"`holdfast resume {JOB}` first" in answer) is first


async def test_a_job_of_one_size_goes_to_zero_and_to_no_other(kit: Kit) -> None:
    await kit.running_job()
    refusal = await kit.post(f"/v1/jobs/{JOB}/scale", {"machines": 1}, status=409)
    assert "It is not elastic" in str(refusal)
    await kit.post(f"/v1/jobs/{JOB}/scale", {"machines": 0})
    await kit.settled()
    assert asked(kit) == [0]


async def test_a_job_at_zero_needs_machines_that_stand_by(kit: Kit) -> None:
    await elastic(kit, standbys=0)
    kit.ledger.set_job(JOB, state=JobState.SCALED_TO_ZERO, machines=())
    await kit.gateway.site.refresh()
    refusal = await kit.post(f"/v1/jobs/{JOB}/scale", {"machines": 2}, status=409)
    assert "wants 2 machines, 0 stand by" in str(refusal)


async def test_it_grows_back_when_a_machine_stands_by_and_it_has_settled(kit: Kit) -> None:
    await elastic(kit, want=4)
    await look(kit, 5.0)
    assert asked(kit) == []
    await look(kit)
    assert asked(kit) == [3]
    assert kit.incidents()[0].alerts[0].evidence["grown"] is True
    await look(kit)
    assert asked(kit) == [3], "one is worked on already"


async def test_it_does_not_grow_beyond_what_it_wants_or_without_a_machine(kit: Kit) -> None:
    await elastic(kit, want=2, standbys=2)
    await look(kit)
    kit.ledger.set_job(JOB, spec=kit.ledger.job(JOB).spec.resized(2))
    for machine in kit.ledger.machines(state=MachineState.STANDBY):
        kit.ledger.set_machine(machine.name, state=MachineState.CORDONED)
    await look(kit)
    assert asked(kit) == []


async def test_a_job_at_zero_keeps_no_machine(kit: Kit) -> None:
    """Its playbook was killed between the last step into S3 and the machines' release."""
    await elastic(kit, standbys=0)
    kit.ledger.set_job(JOB, state=JobState.SCALED_TO_ZERO, machines=())
    await look(kit)
    assert len(kit.ledger.machines(state=MachineState.STANDBY)) == 2
    assert asked(kit) == []


async def test_machines_without_a_slot_go_back_to_the_pool(kit: Kit) -> None:
    """Those that a smaller size leaves over, or that a killed attempt claimed. Not while an incident is open."""
    await elastic(kit, machines=3, want=2, standbys=0)
    job = kit.ledger.job(JOB)
    kit.ledger.set_job(JOB, machines=job.machines[:2], spec=job.spec.resized(2))
    await kit.crash()
    await look(kit)
    assert not kit.ledger.machines(state=MachineState.STANDBY)
    kit.ledger.set_incident(kit.incidents()[0].id, state=IncidentState.RECOVERED)
    kit.ledger.set_job(JOB, state=JobState.RUNNING)
    await look(kit)
    assert [machine.name for machine in kit.ledger.machines(state=MachineState.STANDBY)] == [job.machines[2]]


async def test_a_standby_that_comes_and_goes_does_not_count_at_submission(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No job is given it: an elastic one begins without it, and does not fail when its machines are claimed."""
    for name in ("m0", "m1", "m2"):
        await kit.register(name)
    monkeypatch.setattr(flaps, "of_the_pool", lambda *_: ["m2"])
    spec = {
        "name": JOB,
        "script": "train.py",
        "machines": {"min": 1, "want": 3},
        "ranks_per_machine": 1,
    }
    job = await kit.post("/v1/jobs", {"spec": spec, "code_version": "v1"})
    assert (job["machines"], job["spec"]["machines"]) == (["m0", "m1"], 2)


async def test_a_machine_that_a_job_left_is_taken_out_when_its_move_was_not_ended(kit: Kit) -> None:
    """A fault came first between the switch and the hand-back: the incident that followed knows of no such machine."""
    await elastic(kit, machines=3, want=2, standbys=0)
    job = kit.ledger.job(JOB)
    kit.ledger.set_job(JOB, machines=job.machines[:2], spec=job.spec.resized(2))
    gone = job.machines[2]
    kit.ledger.drain(gone, "i1", Scope.CLUSTER, "left: drain", JOB)
    await kit.crash()
    await look(kit)
    assert kit.ledger.machine(gone).state is MachineState.DRAINING
    kit.close_incident(kit.incidents()[0].id)
    kit.ledger.set_job(JOB, state=JobState.RUNNING)
    await look(kit)
    out = kit.ledger.machine(gone)
    assert (out.state, out.job, out.cordon_reason) == (MachineState.CORDONED, None, "left: drain")


@pytest.mark.parametrize(
    ("source", "becomes"), [("by_hand", MachineState.STANDBY), ("maintenance", MachineState.CORDONED)]
)
async def test_a_machine_whose_move_was_not_ended_becomes_what_the_policy_says(
    kit: Kit, source: str, becomes: MachineState
) -> None:
    """A fault came first when the job had left it."""
    await elastic(kit, machines=3, want=2, standbys=0)
    job = kit.ledger.job(JOB)
    left = job.machines[2]
    request = Alert(
        kind=AlertKind.PLANNED_MOVE, job=JOB, machine=left, at=kit.clock.now(), evidence={"source": source}
    )
    found = Classification(
        incident_class=IncidentClass.PLANNED_MOVE, confidence=1.0, machine=left, reasons=("asked",)
    )
    move = kit.ledger.open_incident(JOB, found, job.epoch, [request], kit.clock.now())
    kit.ledger.set_job(JOB, machines=job.machines[:2], spec=job.spec.resized(2))
    kit.ledger.drain(left, "i1", Scope.CLUSTER, f"left: {planned_move.of(request).description}", JOB)
    give_way(kit.ledger, JOB, "machine_fault", kit.clock.now())
    ended = kit.ledger.incident(move.id)
    assert ended.state is IncidentState.DISMISSED
    assert ended.summary == f"asked. The job had left {left} when machine_fault came"
    await look(kit)
    assert kit.ledger.machine(left).state is becomes


async def test_a_slow_start_takes_few_machines_then_the_others(kit: Kit) -> None:
    """It begins with two of four, and grows once it has settled."""
    for name in ("m0", "m1", "m2", "m3"):
        await kit.register(name)
    spec = {
        "name": JOB,
        "script": "train.py",
        "machines": {"min": 1, "want": 4, "start": 2},
        "ranks_per_machine": 1,
    }
    job = await kit.post("/v1/jobs", {"spec": spec, "code_version": "v1"})
    assert (job["machines"], job["spec"]["machines"]) == (["m0", "m1"], 2)
    await look(kit)
    assert asked(kit) == [4]


def goes_back(kit: Kit, incident: Incident) -> None:
    """Its playbook tried three machines, saw no step, and went back to two."""
    for key, sizes in (("resize:e1", {"from": 2, "to": 3}), ("resize:e2", {"from": 3, "to": 2})):
        kit.ledger.begin(incident.id, 1, key, "resize", {})
        kit.ledger.finish(incident.id, key, sizes)
    kit.ledger.set_incident(incident.id, state=IncidentState.RECOVERED)


async def test_a_size_that_it_does_not_come_up_with_is_tried_again_after_growing_pauses(kit: Kit) -> None:
    """A standby that is bad, or a batch too small for so many ranks: else the job is restarted every half minute."""
    await elastic(kit)
    found = Classification(incident_class=IncidentClass.SCALE_JOB, confidence=1.0, reasons=("grows",))
    goes_back(kit, kit.ledger.open_incident(JOB, found, 1, [], kit.clock.now()))
    for _ in range(2):
        assert len(kit.incidents()) == 1
        await look(kit)
    (again,) = [each for each in kit.incidents() if each.state is IncidentState.OPEN]
    goes_back(kit, again)
    for _ in range(4):
        assert len(kit.incidents()) == 2
        await look(kit)
    assert len(kit.incidents()) == 3


async def test_a_smaller_job_that_is_asked_to_keep_its_size_does_not_grow_back(kit: Kit) -> None:
    """It lost a machine, and a person asks for the number that is left: nothing is restarted for it."""
    await elastic(kit)
    same = await kit.post(f"/v1/jobs/{JOB}/scale", {"machines": 2})
    assert "has 2 machines already" in str(same)
    await look(kit)
    assert asked(kit) == []


async def test_a_size_that_was_asked_for_twice_is_changed_once(kit: Kit) -> None:
    """The second request waited for the first, and finds the job as it is asked to be."""
    await elastic(kit)
    for _ in range(2):
        kit.clock.advance(1.0)
        await kit.post(f"/v1/jobs/{JOB}/scale", {"machines": 3})
    await kit.settled()
    first, second = kit.incidents()
    job, (free,) = kit.ledger.job(JOB), kit.ledger.claim_standbys(JOB, 1)
    kit.ledger.set_job(JOB, machines=[*job.machines, free.name], spec=job.spec.resized(3, wanted=True))
    start_epoch(kit.ledger, JOB)
    kit.close_incident(first.id)
    kit.ledger.set_job(JOB, state=JobState.RUNNING)
    await kit.tick()
    assert kit.ledger.incident(second.id).state is IncidentState.DISMISSED
    assert kit.ledger.incident(second.id).summary == "it has 3 machines already"


@pytest.mark.parametrize("first", [3, 0])
async def test_a_person_who_changes_their_mind_gets_the_size_that_was_asked_for_last(
    kit: Kit, first: int
) -> None:
    """The job still has it, and is about to have another one."""
    await elastic(kit)
    for machines in (first, 2):
        kit.clock.advance(1.0)
        answer = await kit.post(f"/v1/jobs/{JOB}/scale", {"machines": machines})
    await kit.settled()
    assert answer["outcome"] == "waits"
    assert asked(kit) == [first, 2]


async def lacks_machines(kit: Kit, machines: int) -> Incident:
    """A person asks for more machines than stand by: its playbook leaves the job as it is."""
    await kit.post(f"/v1/jobs/{JOB}/scale", {"machines": machines, "by": "ann"})
    await kit.settled()
    incident, now = kit.incidents()[-1], kit.clock.now()
    wait = Wait(
        incident_id=incident.id,
        job=JOB,
        missing=Missing.STANDBY,
        why="none stands by",
        since=now,
        next_at=now + 60,
        runs_on=True,
    )
    kit.ledger.put_wait(wait)
    kit.ledger.set_incident(incident.id, state=IncidentState.NEEDS_HUMAN)
    return incident


async def test_a_size_that_lacks_machines_is_asked_for_again_when_enough_stand_by(kit: Kit) -> None:
    """However long that takes, and whatever else befalls the job."""
    await elastic(kit, want=2, standbys=0)
    first = await lacks_machines(kit, 4)
    kit.ledger.set_job(JOB, state=JobState.RECOVERING)
    await kit.look_again(5)
    kit.ledger.set_job(JOB, state=JobState.RUNNING)
    for _ in range(3):
        await kit.look_again(3600)
    await kit.register("m2")
    await kit.look_again(5)
    assert asked(kit) == [4]
    await kit.register("m3")
    await kit.look_again(5)
    assert asked(kit) == [4, 4]
    again = kit.incidents()[-1].alerts[0].evidence
    assert again["by"] == "ann"
    assert first.id in str(again["text"])
    assert not kit.ledger.waits()


@pytest.mark.parametrize("later", [2, 1])
async def test_a_size_that_lacks_machines_gives_way_to_one_that_is_asked_for_later(
    kit: Kit, later: int
) -> None:
    """Also to the one that the job has."""
    await elastic(kit, want=2, standbys=0)
    await lacks_machines(kit, 3)
    await kit.post(f"/v1/jobs/{JOB}/scale", {"machines": later})
    await kit.settled()
    before = asked(kit)
    for incident in kit.ledger.incidents(JOB, IncidentState.OPEN):
        kit.close_incident(incident.id)
    await kit.register("m2")
    await kit.look_again(5)
    await kit.look_again(3600)
    assert asked(kit) == before


async def test_a_job_grows_back_while_a_larger_size_lacks_machines(kit: Kit) -> None:
    """One machine came, two were asked for: the one serves it meanwhile."""
    await elastic(kit, want=3, standbys=0)
    await lacks_machines(kit, 4)
    await kit.register("m2")
    await kit.look_again(5)
    await look(kit)
    assert asked(kit) == [4, 3]


async def at_zero(kit: Kit) -> None:
    """The job is scaled to zero; no machine stands by."""
    kit.ledger.set_job(JOB, state=JobState.SCALED_TO_ZERO, machines=())
    for machine in kit.ledger.machines():
        kit.ledger.set_machine(machine.name, state=MachineState.CORDONED, job=None)
    await kit.gateway.site.refresh()


async def test_a_job_at_zero_for_which_machines_lack_is_woken_when_enough_stand_by(kit: Kit) -> None:
    await elastic(kit, want=2, standbys=0)
    await lacks_machines(kit, 3)
    await at_zero(kit)
    await kit.register("m7")
    await kit.register("m8")
    await kit.look_again(5)
    await kit.look_again(3600)
    assert asked(kit) == [3]
    await kit.register("m9")
    await kit.look_again(5)
    assert asked(kit) == [3, 3]
    assert not kit.ledger.waits()


async def test_a_job_that_is_to_stay_at_zero_is_not_woken(kit: Kit) -> None:
    """A person asks for zero, which it has, after a schedule that wanted more."""
    await elastic(kit, want=2, standbys=0)
    await lacks_machines(kit, 3)
    await at_zero(kit)
    await kit.post(f"/v1/jobs/{JOB}/scale", {"machines": 0})
    for name in ("m7", "m8", "m9"):
        await kit.register(name)
    await kit.look_again(5)
    assert asked(kit) == [3]

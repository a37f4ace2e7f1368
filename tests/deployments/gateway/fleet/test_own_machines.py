"""Machines that roles have for themselves: taken at submission, left when unfit, replaced; no rank notices."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.deployments.gateway.fleet.launch import seat
from holdfast.models.alert import AlertKind, Classification, IncidentClass, IncidentState
from holdfast.models.job import JobSpec, JobState, Mode
from holdfast.models.machine import MachineState
from holdfast.models.roles import RoleSpec
from holdfast.operations.resize import left_over
from holdfast.testing.gateway_kit import JOB, Kit, rank
from tests.deployments.gateway.fleet.test_roles import Machines

SPEC = JobSpec(
    name=JOB,
    script="train.py",
    machines=2,
    ranks_per_machine=2,
    roles={"rollout": RoleSpec(script="rollout.py", replicas=4, own_machines=2)},
)
XID = {"xid": 79, "line": "NVRM: Xid (PCI:0000:1b:00): 79, pid=1, GPU has fallen off the bus."}


async def submit(kit: Kit, spec: JobSpec = SPEC, status: int = 200) -> Any:
    return await kit.post(
        "/v1/jobs", {"spec": spec.model_dump(mode="json", exclude_none=True), "code_version": "v1"}, status
    )


async def running(kit: Kit, machines: int = 5, spec: JobSpec = SPEC) -> Machines:
    """The job on m0 and m1, its role on m2 and m3, others stand by; all replicas run."""
    for number in range(machines):
        await kit.register(f"m{number}")
    await submit(kit, spec)
    agents = Machines(kit)
    await agents.look()
    names = [f"m{number}" for number in range(machines)]
    await agents.beat(*names)
    await agents.beat(*names)
    for name in agents.plans:
        agents.run(name)
    await agents.beat(*names)
    return agents


async def own_tick(kit: Kit) -> None:
    await kit.gateway.site.refresh()
    await kit.gateway.own_machines.tick()


def of_role(kit: Kit) -> list[str]:
    return [each.name for each in kit.ledger.machines(MachineState.ACTIVE, JOB, role="rollout")]


def untouched(kit: Kit) -> bool:
    """The trainer is as it was started."""
    job = kit.ledger.job(JOB)
    return (job.state, job.epoch, job.machines) == (JobState.RUNNING, 1, ("m0", "m1")) and not kit.incidents()


async def test_they_are_taken_after_those_of_the_ranks(kit: Kit) -> None:
    """Replicas run there alone; slots, ranks and world size know nothing of them."""
    agents = await running(kit)
    job = kit.ledger.job(JOB)
    assert (job.machines, job.spec.world_size) == (("m0", "m1"), 4)
    assert of_role(kit) == ["m2", "m3"]
    assert [len(agents.on(name)) for name in ("m0", "m1", "m2", "m3", "m4")] == [0, 0, 2, 2, 0]
    await agents.beat("m0")
    assert agents.members("m0") == {
        ("rollout", index): f"m{2 + index % 2}:{4000 + index}" for index in range(4)
    }
    assert {each["name"]: each["role"] for each in (await kit.get("/v1/status"))["machines"]} == {
        "m0": "",
        "m1": "",
        "m2": "rollout",
        "m3": "rollout",
        "m4": "",
    }
    (role,) = kit.gateway.roles.view(job)
    assert role["own_machines"] == {"wanted": 2, "names": ["m2", "m3"]}


async def test_too_few_are_refused_with_one_message(kit: Kit) -> None:
    """Nothing is recorded."""
    for number in range(3):
        await kit.register(f"m{number}")
    answer = await submit(kit, status=409)
    assert "wants 2 machines, and 2 for role rollout alone, 3 stand by" in answer["message"]
    assert "`own_machines`" in answer["message"]
    assert kit.ledger.jobs() == []


async def test_a_job_that_is_stopped_gives_them_back(kit: Kit) -> None:
    """And has them again when it is resumed, those of its ranks first, as far as there are any."""
    await running(kit)
    await kit.post(f"/v1/jobs/{JOB}/stop")
    assert {each.state for each in kit.ledger.machines()} == {MachineState.STANDBY}
    assert {each.role for each in kit.ledger.machines()} == {""}
    for name in ("m3", "m4"):
        kit.ledger.set_machine(name, state=MachineState.CORDONED)
    await kit.gateway.site.refresh()
    await seat(kit.gateway.site, kit.ledger.job(JOB))
    assert kit.ledger.job(JOB).machines == ("m0", "m1")
    assert of_role(kit) == ["m2"]


async def test_one_that_dies_costs_the_trainer_nothing(kit: Kit) -> None:
    """A standby takes its place; its replicas go there once they have surely ended."""
    agents = await running(kit)
    answer = await kit.alert(
        kind="machine_lost", job=None, machine="m3", incarnation="i1", evidence={"probe": "refused"}
    )
    assert answer["outcome"] == "cordoned"
    assert kit.ledger.machine("m3").state is MachineState.GONE
    assert of_role(kit) == ["m2", "m4"]
    for _ in range(3):
        await agents.beat("m0", "m1", "m2", "m4")
    assert agents.on("m4") == []  # its agent may live, and run them
    kit.clock.advance(kit.gateway.site.lease_s + 1)
    for _ in range(2):
        await agents.beat("m0", "m1", "m2", "m4")
    assert agents.on("m4") == [("rollout", 1, 2), ("rollout", 3, 2)]
    assert agents.on("m2") == [("rollout", 0, 1), ("rollout", 2, 1)]
    await kit.register("m3", "i2")
    assert kit.ledger.machine("m3").state is MachineState.STANDBY
    await own_tick(kit)
    assert of_role(kit) == ["m2", "m4"]
    assert untouched(kit)


async def test_silence_is_noticed_there_too(kit: Kit) -> None:
    """By the same watch as for ranks."""
    agents = await running(kit)
    kit.prober.dead = {"m2"}
    for _ in range(4):
        kit.clock.advance(kit.gateway.site.window_s * 0.6)
        await agents.beat("m0", "m1", "m3", "m4")
        await kit.gateway.silent.tick()
    assert kit.ledger.machine("m2").state is MachineState.GONE
    assert of_role(kit) == ["m3", "m4"]
    assert untouched(kit)


async def test_without_a_standby_the_others_carry_its_replicas(kit: Kit) -> None:
    """Never the ranks' machines."""
    agents = await running(kit, machines=4)
    await kit.alert(kind="machine_lost", machine="m3", incarnation="i1")
    kit.clock.advance(kit.gateway.site.lease_s + 1)
    for _ in range(2):
        await agents.beat("m0", "m1", "m2")
    assert [len(agents.on(name)) for name in ("m0", "m1", "m2")] == [0, 0, 4]
    assert untouched(kit)


async def test_with_a_limit_replicas_wait_for_a_standby(kit: Kit) -> None:
    """Which takes the lost one's place whenever it comes."""
    role = RoleSpec(script="r.py", replicas=4, own_machines=2, per_machine=2)
    agents = await running(kit, 4, SPEC.model_copy(update={"roles": {"rollout": role}}))
    await kit.alert(kind="machine_lost", machine="m3", incarnation="i1")
    kit.clock.advance(kit.gateway.site.lease_s + 1)
    for _ in range(2):
        await agents.beat("m0", "m1", "m2")
    assert len(agents.on("m2")) == 2
    (seen,) = kit.gateway.roles.view(kit.ledger.job(JOB))
    assert seen["unplaced"] == 2
    await kit.register("m9")
    await own_tick(kit)
    for _ in range(2):
        await agents.beat("m0", "m1", "m2", "m9")
    assert agents.on("m9") == [("rollout", 1, 2), ("rollout", 3, 2)]
    assert untouched(kit)


async def test_replicas_leave_one_with_a_fault_before_it_is_taken_out(kit: Kit) -> None:
    """The machine drains meanwhile, and a standby has its place: no rank is paused for an Xid where none runs."""
    agents = await running(kit)
    await kit.alert(kind="xid", job=None, machine="m3", incarnation="i1", evidence=XID)
    draining = kit.ledger.machine("m3")
    assert (draining.state, draining.role) == (MachineState.DRAINING, "rollout")
    assert of_role(kit) == ["m2", "m4"]
    await own_tick(kit)
    for _ in range(2):
        await agents.beat("m0", "m1", "m2", "m3", "m4")
        await own_tick(kit)
    assert agents.on("m3") == []
    assert agents.on("m4") == []  # what ran there has not ended
    assert ("take_out", "m3") not in kit.acts.calls
    agents.states["m3"] = ()
    await agents.beat("m3")
    await own_tick(kit)
    assert ("take_out", "m3") in kit.acts.calls
    out = kit.ledger.machine("m3")
    assert out.state is MachineState.CORDONED
    assert "Xid 79" in str(out.cordon_reason)
    await agents.beat("m0", "m1", "m2", "m4")
    await agents.beat("m0", "m1", "m2", "m4")
    assert agents.on("m4") == [("rollout", 1, 2), ("rollout", 3, 2)]
    assert untouched(kit)


async def test_replicas_that_do_not_end_hold_nothing_up_for_ever(kit: Kit) -> None:
    """The machine is taken out with them, and another gateway goes on where this one was killed."""
    agents = await running(kit)
    await kit.alert(kind="xid", machine="m3", incarnation="i1", evidence=XID)
    await kit.restart()
    agents.kit = kit
    for _ in range(3):
        await agents.beat("m0", "m1", "m2", "m3", "m4")
        await own_tick(kit)
    assert ("take_out", "m3") not in kit.acts.calls
    kit.clock.advance(91)
    await agents.beat("m0", "m1", "m2", "m3", "m4")
    await own_tick(kit)
    assert ("take_out", "m3") in kit.acts.calls
    assert untouched(kit)


async def test_a_person_may_evict_one(kit: Kit) -> None:
    """Its replicas leave first, as for a fault."""
    agents = await running(kit)
    await kit.post("/v1/machines/m2/evict", {"reason": "new cooling", "by": "ann", "scope": "job"})
    machine = kit.ledger.machine("m2")
    assert (machine.state, machine.cordon_reason) == (MachineState.DRAINING, "ann: new cooling")
    assert machine.cordon_scope == "job"
    for _ in range(2):
        await agents.beat("m0", "m1", "m2", "m3", "m4")
    agents.states["m2"] = ()
    await agents.beat("m2")
    await own_tick(kit)
    assert kit.ledger.machine("m2").state is MachineState.CORDONED
    assert untouched(kit)


@pytest.mark.parametrize(
    ("alert", "mode"),
    [
        ({"kind": "host_fault", "evidence": {"check": "oom_kill", "detail": "oom"}}, Mode.ACT),
        ({"kind": "xid", "evidence": XID}, Mode.OBSERVE),
    ],
)
async def test_one_stays_for_what_proves_nothing_and_where_nothing_is_to_be_done(
    kit: Kit, alert: dict[str, Any], mode: Mode
) -> None:
    """The alert is on record with the reason."""
    await running(kit, spec=SPEC.model_copy(update={"mode": mode}))
    answer = await kit.alert(machine="m3", incarnation="i1", **alert)
    assert answer["outcome"] == "ignored"
    assert of_role(kit) == ["m2", "m3"]
    assert untouched(kit)


async def test_one_bad_sensor_does_not_empty_a_role(kit: Kit) -> None:
    """The breaker of evictions holds for them as well."""
    role = RoleSpec(script="r.py", replicas=8, own_machines=8)
    await running(kit, 10, SPEC.model_copy(update={"roles": {"rollout": role}}))
    outcomes = [
        (await kit.alert(kind="xid", machine=f"m{number}", incarnation="i1", evidence=XID))["outcome"]
        for number in range(2, 10)
    ]
    assert outcomes == ["cordoned"] * 4 + ["ignored"] * 4
    assert of_role(kit) == ["m6", "m7", "m8", "m9"]


async def test_ranks_have_the_first_choice_of_standbys(kit: Kit) -> None:
    """While a job recovers none is taken for a role."""
    await running(kit, machines=4)
    await kit.alert(kind="machine_lost", machine="m3", incarnation="i1")
    kit.ledger.set_job(JOB, state=JobState.RECOVERING)
    await kit.register("m8")
    await own_tick(kit)
    assert of_role(kit) == ["m2"]
    kit.ledger.set_job(JOB, state=JobState.RUNNING)
    await kit.crash(0)
    await own_tick(kit)
    assert of_role(kit) == ["m2"]
    (incident,) = kit.incidents()
    assert incident.incident_class is IncidentClass.JOB_CRASH
    kit.close_incident(incident.id)
    await own_tick(kit)
    assert of_role(kit) == ["m2", "m8"]


async def test_a_job_that_waits_for_a_person_keeps_no_standby_from_a_role(kit: Kit) -> None:
    """It may stay in recovery for days; while its recovery is worked on, it comes first."""
    await running(kit, machines=4)
    kit.ledger.add_job(SPEC.model_copy(update={"name": "other", "roles": {}}), "v1")
    kit.ledger.set_job("other", state=JobState.RECOVERING)
    found = Classification(incident_class=IncidentClass.JOB_CRASH, confidence=1.0, reasons=("it fell",))
    incident = kit.ledger.open_incident("other", found, 1, [], kit.clock.now())
    await kit.alert(kind="machine_lost", machine="m3", incarnation="i1")
    await kit.register("m8")
    await own_tick(kit)
    assert of_role(kit) == ["m2"]
    kit.ledger.set_incident(incident.id, state=IncidentState.NEEDS_HUMAN)
    await own_tick(kit)
    assert of_role(kit) == ["m2", "m8"]


async def test_a_slot_that_names_a_machine_is_not_given_to_a_role(kit: Kit) -> None:
    """One that ranks lost, and that came back: its slot would seem to be filled."""
    await running(kit, machines=4)
    kit.ledger.lose("m1", "i1", JOB, "dead")
    kit.ledger.lose("m3", "i1", JOB, "dead")
    await kit.register("m1", "i2")
    await own_tick(kit)
    assert of_role(kit) == ["m2"]


async def test_none_is_given_back_as_left_over(kit: Kit) -> None:
    """It has no slot, as a machine that was claimed for a larger size and then not needed."""
    agents = await running(kit)
    kit.clock.advance(kit.gateway.site.policy.elastic.settled_s + 1)
    await agents.beat("m0", "m1", "m2", "m3")
    await kit.gateway.sizes.tick()
    assert of_role(kit) == ["m2", "m3"]
    kit.ledger.set_job(JOB, state=JobState.SCALED_TO_ZERO, machines=())
    await kit.gateway.site.refresh()
    await kit.gateway.sizes.tick()
    assert of_role(kit) == []


async def test_more_than_a_role_wants_are_given_back(kit: Kit) -> None:
    """A job that failed and is submitted again may find machines that the former one had."""
    agents = await running(kit, machines=6)
    kit.ledger.claim_standbys(JOB, 1, role="rollout")
    kit.ledger.claim_standbys(JOB, 1, role="of-before")
    await agents.beat("m0", "m1", "m2", "m3")
    serving = kit.ledger.machines(MachineState.ACTIVE, JOB)
    assert [each.name for each in left_over(kit.ledger.job(JOB), serving)] == ["m4", "m5"]
    at_zero = kit.ledger.job(JOB).model_copy(update={"state": JobState.SCALED_TO_ZERO, "machines": ()})
    assert left_over(at_zero, serving) == serving
    kit.clock.advance(kit.gateway.site.policy.elastic.settled_s + 1)
    await kit.gateway.sizes.tick()
    assert of_role(kit) == ["m2", "m3"]
    assert kit.ledger.machine("m5").state is MachineState.STANDBY


async def test_a_move_names_what_is_to_be_done_instead(kit: Kit) -> None:
    """No rank has to move."""
    await running(kit)
    answer = await kit.post(f"/v1/jobs/{JOB}/move", {"machine": "m2"}, status=409)
    assert "`holdfast evict m2`" in answer["message"]
    assert untouched(kit)


async def test_detectors_do_not_take_its_silence_of_ranks_for_a_fault(kit: Kit) -> None:
    """It runs no ranks, and is not asked for any."""
    agents = await running(kit)
    for _ in range(5):
        kit.clock.advance(30)
        for name, ranks in (("m0", (0, 1)), ("m1", (2, 3))):
            await kit.beat(name, [rank(number, 5, kit.clock.now()) for number in ranks])
        await agents.beat("m2", "m3", "m4")
        await kit.gateway.exits.tick()
    await kit.register("m3", "i2")
    await kit.settled()
    assert kit.ledger.machine("m3").role == "rollout"
    assert untouched(kit)
    assert AlertKind.RANK_EXIT not in {each.kind for each in kit.ledger.alerts()}

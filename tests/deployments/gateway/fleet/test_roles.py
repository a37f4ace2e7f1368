"""Roles at the gateway: places, plans in heartbeats' answers, members, scaling, and what happens when machines go."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast.errors import UnavailableError
from holdfast.models.agent import Heartbeat
from holdfast.models.alert import IncidentState
from holdfast.models.job import JobState
from holdfast.models.machine import MachineState
from holdfast.models.roles import PlacesOfJob, ReplicaPhase, ReplicaState, RolePlan, RoleSpec
from holdfast.testing.gateway_kit import JOB, Kit, start_epoch

ROLLOUT = RoleSpec(script="rollout.py", replicas=2)


class Machines:
    """Agents that do as their plans say."""

    def __init__(self, kit: Kit) -> None:
        self.kit = kit
        self.plans: dict[str, RolePlan] = {}
        self.states: dict[str, tuple[ReplicaState, ...]] = {}

    async def beat(self, *names: str, incarnation: str = "i1") -> None:
        """Heartbeats, with a round of the gateway after them."""
        for name in names:
            mine = self.plans.get(name, RolePlan())
            body = Heartbeat(
                machine=name,
                incarnation=incarnation,
                at=self.kit.clock.now(),
                replicas=self.states.get(name, ()),
                plan=mine.version,
            )
            answer = await self.kit.post("/v1/agents/heartbeat", body.model_dump(mode="json"))
            if answer["plan"] is not None:
                self.plans[name] = RolePlan.model_validate(answer["plan"])
        await self.look()

    async def look(self) -> None:
        await self.kit.gateway.site.refresh()
        await self.kit.gateway.roles.tick()

    def run(self, name: str, phase: ReplicaPhase = ReplicaPhase.RUNNING, **changes: Any) -> None:
        """All replicas of the machine's plan run, and have announced an address."""
        self.states[name] = tuple(
            ReplicaState.model_validate(
                {
                    "job": job.job,
                    "role": each.role,
                    "index": each.index,
                    "generation": each.generation,
                    "phase": phase,
                    "pid": 7,
                    "address": f"{name}:{4000 + each.index}" if phase is ReplicaPhase.RUNNING else "",
                    **changes,
                }
            )
            for job in self.plans[name].jobs
            for each in job.replicas
        )

    def on(self, name: str) -> list[tuple[str, int, int]]:
        """A machine's orders: role, index and generation."""
        jobs = self.plans.get(name, RolePlan()).jobs
        return [(each.role, each.index, each.generation) for job in jobs for each in job.replicas]

    def members(self, name: str) -> dict[tuple[str, int], str]:
        """Addresses of replicas that a machine knows."""
        return {(m.role, m.index): m.address for job in self.plans[name].jobs for m in job.members}


async def with_roles(kit: Kit, **roles: RoleSpec) -> Machines:
    """A running job on m0 and m1 with these roles; each machine has its first plan."""
    job = await kit.running_job()
    kit.ledger.set_job(JOB, spec=job.spec.model_copy(update={"roles": roles}))
    machines = Machines(kit)
    await machines.beat("m0", "m1", "m2")
    await machines.beat("m0", "m1", "m2")
    return machines


async def test_replicas_are_spread_and_found(kit: Kit) -> None:
    """One on each machine of the job, none on standbys; addresses reach every machine."""
    machines = await with_roles(kit, rollout=ROLLOUT)
    assert machines.on("m0") == [("rollout", 0, 1)]
    assert machines.on("m1") == [("rollout", 1, 1)]
    assert machines.on("m2") == []
    machines.run("m1")
    await machines.beat("m1")
    await machines.beat("m0")
    assert machines.members("m0") == {("rollout", 1): "m1:4001"}
    await kit.gateway._refresh()
    shown = kit.gateway.site.metrics.render().decode()
    assert f'holdfast_role_replicas{{job="{JOB}",role="rollout"}} 2.0' in shown
    assert f'holdfast_role_running{{job="{JOB}",role="rollout"}} 1.0' in shown


async def test_a_gateway_that_may_be_overtaken_replaces_no_plan_of_another(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ledger is away for this one alone, say; machines that go by its own plans hear of changes all the same."""
    machines = await with_roles(kit, rollout=ROLLOUT)
    of_another = Heartbeat(machine="m0", incarnation="i1", at=0.0, plan="of-another").model_dump(mode="json")

    def unsure() -> None:
        raise UnavailableError("another gateway may lead")

    with monkeypatch.context() as patch:
        patch.setattr(kit.gateway, "may_act", unsure)
        assert (await kit.post("/v1/agents/heartbeat", of_another))["plan"] is None
        machines.run("m1")
        await machines.beat("m1")
        await machines.beat("m0")
        assert machines.members("m0") == {("rollout", 1): "m1:4001"}
    assert (await kit.post("/v1/agents/heartbeat", of_another))["plan"] is not None


async def test_what_the_job_gives_its_ranks_is_not_what_a_role_states(kit: Kit) -> None:
    """The GPUs that ranks are kept to are not those of a role that names others; all else is passed on."""
    job = await kit.running_job()
    roles = {
        "on-gpus": RoleSpec(script="r.py", gpus=(6, 7)),
        "other": RoleSpec(script="r.py", env={"OMP_NUM_THREADS": "3"}),
    }
    env = {"CUDA_VISIBLE_DEVICES": "0,1", "OMP_NUM_THREADS": "16", "MODE": "x"}
    kit.ledger.set_job(JOB, spec=job.spec.model_copy(update={"roles": roles, "env": env}))
    machines = Machines(kit)
    for _ in range(2):
        await machines.beat("m0", "m1")
    found = {
        each.role: each.env
        for plan in machines.plans.values()
        for of_job in plan.jobs
        for each in of_job.replicas
    }
    assert found == {
        "on-gpus": {"MODE": "x"},
        "other": {"CUDA_VISIBLE_DEVICES": "0,1", "OMP_NUM_THREADS": "3", "MODE": "x"},
    }


async def test_a_plan_is_sent_once(kit: Kit) -> None:
    """An agent that goes by it is sent nothing."""
    machines = await with_roles(kit, rollout=ROLLOUT)
    body = Heartbeat(machine="m0", incarnation="i1", at=0.0, plan=machines.plans["m0"].version)
    assert (await kit.post("/v1/agents/heartbeat", body.model_dump(mode="json")))["plan"] is None


async def test_replicas_of_an_evicted_machine_are_placed_elsewhere(kit: Kit) -> None:
    """In a newer generation, once the old one has surely ended; its address is withdrawn at once; the other stays."""
    machines = await with_roles(kit, rollout=ROLLOUT)
    machines.run("m0")
    machines.run("m1")
    await machines.beat("m0", "m1")
    kit.ledger.set_machine("m0", state=MachineState.CORDONED)
    await machines.look()
    await machines.beat("m1")
    assert machines.on("m1") == [("rollout", 1, 1)]
    (role,) = kit.gateway.roles.view(kit.ledger.job(JOB))
    assert [each["phase"] for each in role["places"]] == ["leaving", "running"]
    kit.clock.advance(kit.gateway.site.lease_s + 1)
    await machines.look()
    await machines.beat("m1")
    assert machines.on("m1") == [("rollout", 0, 2), ("rollout", 1, 1)]
    assert machines.members("m1") == {("rollout", 1): "m1:4001"}
    assert kit.incidents() == []


async def test_a_replica_of_a_draining_machine_ends_before_the_next_one_starts(kit: Kit) -> None:
    """Its agent is heard all the time: it goes by the new plan first, and then its process has to end."""
    machines = await with_roles(kit, rollout=ROLLOUT)
    machines.run("m0")
    machines.run("m1")
    await machines.beat("m0", "m1")
    kit.ledger.set_machine("m0", state=MachineState.DRAINING)
    await machines.look()
    for _ in range(3):
        await machines.beat("m0", "m1")
        assert machines.on("m0") == []
        assert machines.on("m1") == [("rollout", 1, 1)]
    machines.states["m0"] = ()
    await machines.beat("m0")
    await machines.beat("m1")
    assert machines.on("m1") == [("rollout", 0, 2), ("rollout", 1, 1)]


async def test_another_gateway_goes_on_with_the_places(kit: Kit) -> None:
    """Replicas run on while it has not heard their machines, and stay where they are then."""
    machines = await with_roles(kit, rollout=ROLLOUT)
    machines.run("m0")
    machines.run("m1")
    await machines.beat("m0", "m1")
    await machines.beat("m0", "m1")
    before = dict(machines.plans)
    await kit.restart()
    await machines.beat("m0")
    assert machines.plans == before
    await machines.beat("m1")
    await machines.beat("m0", "m1")
    assert machines.plans == before


async def test_a_role_waits_for_what_it_needs(kit: Kit) -> None:
    """Until each replica of that is announced."""
    cache = RoleSpec(kind="ordered", script="cache.py", replicas=1)
    machines = await with_roles(kit, cache=cache, rollout=ROLLOUT.model_copy(update={"needs": ("cache",)}))
    view = kit.gateway.roles.view(kit.ledger.job(JOB))
    assert [(row["name"], row["waits_for"]) for row in view] == [("cache", []), ("rollout", ["cache"])]
    assert [*machines.on("m0"), *machines.on("m1")] == [("cache", 0, 1)]
    machines.run("m0")
    await machines.beat("m0")
    await machines.beat("m0", "m1")
    assert sorted([*machines.on("m0"), *machines.on("m1")]) == [
        ("cache", 0, 1),
        ("rollout", 0, 1),
        ("rollout", 1, 1),
    ]


async def test_a_replica_that_fails_everywhere_asks_a_person_and_nothing_else(kit: Kit) -> None:
    """One incident, no run of a playbook; the job runs on; it closes when the replica works again."""
    machines = await with_roles(kit, rollout=RoleSpec(script="rollout.py", restart={"moves": 1}))
    for name in ("m0", "m1"):
        machines.run(name, ReplicaPhase.FAILED, why="exit status 3; 5 failures in a row")
        await machines.beat(name)
        await machines.beat("m0", "m1")
    (incident,) = kit.incidents()
    assert incident.state is IncidentState.NEEDS_HUMAN
    assert "rollout 0: exit status 3; 5 failures in a row on m0, m1" in incident.summary
    assert kit.runs.created == []
    assert kit.ledger.job(JOB).state is JobState.RUNNING
    assert kit.gateway.roles.view(kit.ledger.job(JOB))[0]["places"][0]["phase"] == "failed"
    assert machines.on("m0") == machines.on("m1") == []
    kit.clock.advance(601)
    await machines.beat("m0", "m1")
    await machines.beat("m0", "m1")
    assert machines.on("m0") == [("rollout", 0, 3)]
    machines.run("m0")
    await machines.beat("m0", "m1")
    await machines.beat("m0", "m1")
    (incident,) = kit.incidents()
    assert (incident.state, incident.summary) == (IncidentState.RECOVERED, "rollout 0 works again")


async def test_a_replica_without_an_address_works_again_once_it_has_lasted(kit: Kit) -> None:
    """By its own machine's clock; the machines on which it failed before count no more."""
    machines = await with_roles(kit, rollout=RoleSpec(script="rollout.py", restart={"moves": 0}))
    machines.run("m0", ReplicaPhase.FAILED, why="exit status 3")
    await machines.beat("m0")
    await machines.beat("m0", "m1")
    assert [each.state for each in kit.incidents()] == [IncidentState.NEEDS_HUMAN]
    kit.clock.advance(601)
    await machines.beat("m0", "m1")
    await machines.beat("m0", "m1")
    assert machines.on("m1") == [("rollout", 0, 2)]
    machines.run("m1", address="", since=kit.clock.now())
    for state in (IncidentState.NEEDS_HUMAN, IncidentState.RECOVERED):
        await machines.beat("m0", "m1")
        await machines.beat("m0", "m1")
        assert [each.state for each in kit.incidents()] == [state]
        kit.clock.advance(61)
    assert not kit.ledger.places(JOB).places[0].tried


async def test_a_role_with_more_threads_than_cores_has_a_warning(kit: Kit) -> None:
    """By what the machines of the job report, from the next look on; an agent that reports none silences it."""
    await with_roles(kit, rollout=ROLLOUT)

    async def warning(*cores: int) -> str:
        for name, number in zip(("m0", "m1"), cores, strict=True):
            beat = Heartbeat(machine=name, incarnation="i1", at=kit.clock.now(), cores=number)
            await kit.post("/v1/agents/heartbeat", beat.model_dump(mode="json"))
        status = (await kit.get(f"/v1/jobs/{JOB}/history"))["status"]
        return str(status["roles"][0]["crowded"])

    assert await warning(2, 2) == ""
    await kit.post(f"/v1/jobs/{JOB}/roles/rollout/scale", {"replicas": 5})
    assert (
        "5 replicas x 1 cpus are 5 threads, and 2 machines that may carry them have 4 cores"
        in await warning(2, 2)
    )
    assert await warning(2, 0) == ""
    assert await warning(2, 3) == ""


async def test_replicas_are_kept_in_domains_of_their_own(kit: Kit) -> None:
    """By what is known of their places: m0 and m1 share a rack, so the second replica waits until they do not."""
    job = await kit.running_job()
    kit.ledger.locate({name: {"rack": "r1"} for name in ("m0", "m1")})
    apart = ROLLOUT.model_copy(update={"spread": "rack", "spread_required": True})
    kit.ledger.set_job(JOB, spec=job.spec.model_copy(update={"roles": {"rollout": apart}}))
    machines = Machines(kit)
    for _ in range(2):
        await machines.beat("m0", "m1", "m2")
    assert machines.on("m0") == [("rollout", 0, 1)]
    assert machines.on("m1") == []
    (role,) = (await kit.get(f"/v1/jobs/{JOB}/history"))["status"]["roles"]
    assert role["unplaced"] == 1
    kit.ledger.locate({"m1": {"rack": "r2"}})
    await machines.look()
    await machines.beat("m1")
    assert machines.on("m1") == [("rollout", 1, 1)]


async def test_a_role_is_scaled_by_itself(kit: Kit) -> None:
    """Up, down to none, and never one that is not there."""
    machines = await with_roles(kit, rollout=ROLLOUT)
    for replicas in (3, 0):
        await kit.post(f"/v1/jobs/{JOB}/roles/rollout/scale", {"replicas": replicas})
        await machines.look()
        await machines.beat("m0", "m1")
        assert len([*machines.on("m0"), *machines.on("m1")]) == replicas
    refusal = await kit.post(f"/v1/jobs/{JOB}/roles/cache/scale", {"replicas": 1}, status=409)
    assert "its roles are rollout" in str(refusal)
    assert kit.runs.created == []


async def test_a_replica_that_is_wanted_again_starts_once_the_old_one_has_ended(kit: Kit) -> None:
    """The role was scaled down and up within a moment: its agent still has it, and it may end slowly."""
    machines = await with_roles(kit, rollout=ROLLOUT)
    machines.run("m0")
    machines.run("m1")
    await machines.beat("m0", "m1")
    for replicas in (1, 2):
        await kit.post(f"/v1/jobs/{JOB}/roles/rollout/scale", {"replicas": replicas})
        await machines.look()
    for _ in range(2):
        await machines.beat("m0", "m1")
        assert machines.on("m0") == [("rollout", 0, 1)]
        assert machines.on("m1") == []
    machines.states["m1"] = ()
    await machines.beat("m1")
    await machines.beat("m1")
    assert machines.on("m1") == [("rollout", 1, 2)]


async def test_replicas_end_with_their_job(kit: Kit) -> None:
    """Their generations go on counting in a job of the same name."""
    machines = await with_roles(kit, rollout=ROLLOUT)
    kit.ledger.set_job(JOB, state=JobState.STOPPED)
    await machines.look()
    await machines.beat("m0", "m1")
    assert machines.on("m0") == machines.on("m1") == []
    spec = kit.ledger.job(JOB).spec.model_dump(mode="json")
    kit.ledger.give_back(["m0", "m1"], JOB)
    await kit.post("/v1/jobs", {"spec": spec, "code_version": "v1"})
    await machines.look()
    await machines.beat("m0", "m1", "m2")
    placed = [each for name in ("m0", "m1", "m2") for each in machines.on(name)]
    assert sorted(placed) == [("rollout", 0, 2), ("rollout", 1, 2)]


async def test_replicas_of_a_job_that_is_resumed_at_once_start_again(kit: Kit) -> None:
    """Their agents ended them by order when it was stopped; no heartbeat came meanwhile."""
    machines = await with_roles(kit, rollout=ROLLOUT)
    before = {name: machines.on(name) for name in ("m0", "m1")}
    kit.ledger.set_job(JOB, state=JobState.STOPPED)
    await machines.look()
    kit.ledger.set_job(JOB, state=JobState.RUNNING)
    await machines.look()
    for name, replicas in before.items():
        body = Heartbeat(machine=name, incarnation="i1", at=0.0, plan=machines.plans[name].version)
        answer = await kit.post("/v1/agents/heartbeat", body.model_dump(mode="json"))
        machines.plans[name] = RolePlan.model_validate(answer["plan"])
        assert machines.on(name) == replicas
        body = body.model_copy(update={"plan": machines.plans[name].version})
        assert (await kit.post("/v1/agents/heartbeat", body.model_dump(mode="json")))["plan"] is None


@pytest.mark.parametrize("again", [{"rollout": ROLLOUT}, {}], ids=["with its role", "without roles"])
async def test_a_new_submission_closes_what_a_person_was_asked(kit: Kit, again: dict[str, RoleSpec]) -> None:
    """The replica of the former job is gone; what a person has decided of another one stays."""
    machines = await with_roles(kit, rollout=RoleSpec(script="rollout.py", replicas=2, restart={"moves": 0}))
    for name in ("m0", "m1"):
        machines.run(name, ReplicaPhase.FAILED, why="exit status 3")
        await machines.beat(name)
    await machines.beat("m0", "m1")
    first, second = sorted(kit.incidents(), key=lambda each: each.id)
    assert first.state is second.state is IncidentState.NEEDS_HUMAN
    kit.ledger.set_incident(second.id, state=IncidentState.DISMISSED, summary="known")
    job = kit.ledger.set_job(JOB, state=JobState.STOPPED)
    kit.ledger.give_back(["m0", "m1"], JOB)
    spec = job.spec.model_copy(update={"roles": again}).model_dump(mode="json")
    await kit.post("/v1/jobs", {"spec": spec, "code_version": "v1"})
    first, second = sorted(kit.incidents(), key=lambda each: each.id)
    assert (first.state, second.state) == (IncidentState.RECOVERED, IncidentState.DISMISSED)
    assert first.summary == f"job {JOB} was submitted again: rollout 0 starts again"
    assert second.summary == "known"


async def test_places_are_as_they_were_written(kit: Kit) -> None:
    """And none were for a job that never had any."""
    assert kit.ledger.places("none") == PlacesOfJob()


@pytest.mark.parametrize("with_trainer", ["stay", "restart"])
async def test_ranks_start_after_the_roles_that_they_need(kit: Kit, with_trainer: str) -> None:
    """They have the job's machines already; no rank runs before they are ready; they start again with a later epoch."""
    for name in ("m0", "m1"):
        await kit.register(name)
    machines = Machines(kit)
    spec = {
        "name": JOB,
        "script": "train.py",
        "machines": 2,
        "ranks_per_machine": 1,
        "roles": {
            "trainer": {"needs": ["cache"]},
            "cache": {"kind": "ordered", "script": "cache.py", "with_trainer": with_trainer},
        },
    }
    await kit.gateway.site.refresh()
    submitted = asyncio.create_task(kit.post("/v1/jobs", {"spec": spec, "code_version": "v1"}))
    async with asyncio.timeout(60):
        while not machines.on("m0"):
            await machines.beat("m0", "m1")
            await asyncio.sleep(0.01)
        assert not kit.acts.calls
        machines.run("m0")
        await machines.beat("m0")
        assert (await submitted)["spec"]["name"] == JOB
    await machines.beat("m0", "m1")
    await machines.beat("m0", "m1")
    assert machines.on("m0") == [("cache", 0, 1)]
    start_epoch(kit.ledger, JOB)
    await machines.look()
    await machines.beat("m0", "m1")
    assert machines.on("m0") == [("cache", 0, 1 if with_trainer == "stay" else 2)]


async def test_a_job_without_room_for_its_roles_is_refused(kit: Kit) -> None:
    """Nothing is recorded."""
    spec = {
        "name": JOB,
        "script": "train.py",
        "machines": 2,
        "ranks_per_machine": 1,
        "roles": {"rollout": {"script": "rollout.py", "replicas": 0}},
    }
    refusal = await kit.post("/v1/jobs", {"spec": spec, "code_version": "v1"}, status=409)
    assert "roles.rollout.replicas = 0: expected at least 1" in str(refusal)
    assert kit.ledger.jobs() == []


async def test_the_time_that_replicas_ran_is_counted_of_the_time_that_they_were_wanted(kit: Kit) -> None:
    """Also by the next gateway that leads; not by a job that is submitted again under the name."""
    machines = await with_roles(kit, rollout=ROLLOUT)
    times = kit.gateway.roles.times

    async def pass_s(seconds: int) -> None:
        for _ in range(seconds):
            kit.clock.advance(1.0)
            await times.tick()

    await times.tick()
    machines.run("m0")
    await machines.beat("m0")
    await pass_s(30)  # one of two runs
    machines.run("m1")
    await machines.beat("m1")
    await pass_s(30)
    (role,) = kit.gateway.roles.view(kit.ledger.job(JOB))
    assert role["share"] == pytest.approx(0.75)
    await kit.gateway._refresh()
    assert (
        f'holdfast_role_share{{job="{JOB}",role="rollout"}} 0.75'
        in kit.gateway.site.metrics.render().decode()
    )
    kit.clock.advance(1_000.0)  # no gateway counts it
    await times.tick()
    await kit.gateway.roles.resume()
    await machines.beat("m0", "m1")
    await times.tick()
    assert times.of(JOB)["rollout"].share == pytest.approx(0.75, abs=0.09), (
        "all but the last seconds are in the ledger"
    )
    await kit.gateway.roles.submitted(JOB)
    assert times.of(JOB) == {}
    assert kit.ledger.role_times(JOB) == {}

"""Roles in a job file: what they may be, and one message for what they may not."""

import pytest
from pydantic import ValidationError

from holdfast import roles
from holdfast.agent import wire
from holdfast.models.environment import OF_AGENTS
from holdfast.models.job import JobSpec, no_start
from holdfast.models.role_rules import own_machines
from holdfast.models.roles import RoleKind

JOB = {"name": "rl", "script": "train.py", "machines": 2, "ranks_per_machine": 1}


def job(**roles: object) -> JobSpec:
    return JobSpec.model_validate(
        {**JOB, "roles": {name.replace("_", "-"): role for name, role in roles.items()}}
    )


def test_a_job_without_roles_is_as_before() -> None:
    """Old job files, and jobs that older releases recorded."""
    assert JobSpec.model_validate(JOB).roles == {}


def test_roles_have_defaults() -> None:
    """A script and a number suffice; the trainer's needs stand under its name."""
    spec = job(
        trainer={"needs": ["cache"]},
        cache={"kind": "ordered", "script": "cache.py"},
        rollout={"script": "rollout.py", "replicas": 4},
    )
    assert spec.roles["rollout"].kind is RoleKind.DYNAMIC
    assert spec.roles["trainer"].needs == ("cache",)
    assert JobSpec.model_validate_json(spec.model_dump_json()) == spec


@pytest.mark.parametrize(
    ("roles", "text"),
    [
        ({"a": {"script": "a.py", "needs": ["b"]}}, "there is no such role. Roles: a, trainer"),
        (
            {"a": {"script": "a.py", "needs": ["b"]}, "b": {"script": "b.py", "needs": ["a"]}},
            "a needs b needs a: a cycle",
        ),
        ({"a": {"script": "a.py", "needs": ["a"]}}, "a needs a: a cycle"),
        ({"a": {"kind": "rigid", "script": "a.py"}}, "a job has one rigid role, its trainer"),
        ({"a": {}}, "roles.a.script: missing"),
        ({"trainer": {"script": "train.py"}}, "the trainer is the job itself"),
        ({"trainer": {"own_machines": 1}}, "the trainer is the job itself"),
        (
            {"a": {"script": "a.py", "machines": 1, "own_machines": 1}},
            "own_machines = 1 gives it others. Leave one of the two out",
        ),
        (
            {"a": {"script": "a.py", "restart": {"pause_s": 9, "longest_pause_s": 1}}},
            "longest_pause_s = 1 is shorter than pause_s = 9",
        ),
    ],
)
def test_bad_roles_are_refused_with_one_message(roles: dict[str, object], text: str) -> None:
    """It names the role and what was expected."""
    with pytest.raises(ValidationError) as raised:
        JobSpec.model_validate({**JOB, "roles": roles})
    assert text in str(raised.value)
    assert raised.value.error_count() == 1


@pytest.mark.parametrize(
    ("role", "text"),
    [
        ({"replicas": 0}, "replicas = 0: expected at least 1"),
        ({"machines": 3}, "machines = 3: the job has 2"),
        ({"replicas": 5, "per_machine": 2}, "there is room for 4 (2 per machine on 2)"),
        ({"replicas": 4, "per_machine": 1, "own_machines": 3}, "there is room for 3 (1 per machine on 3)"),
        ({"replicas": 2, "own_machines": 3}, "own_machines = 3: there are 2 replicas"),
    ],
)
def test_roles_without_room_are_refused_at_submission(role: dict[str, object], text: str) -> None:
    """A job that is scaled later keeps its roles."""
    spec = job(a={"script": "a.py", **role})
    assert text in no_start(spec)


def test_machines_of_a_roles_own_are_none_of_the_ranks() -> None:
    """World size and slots know nothing of them, and a role that is scaled down keeps them."""
    spec = job(a={"script": "a.py", "replicas": 6, "per_machine": 2, "own_machines": 3})
    assert not no_start(spec)
    assert (spec.world_size, own_machines(spec.roles)) == (2, {"a": 3})
    assert spec.with_role("a", 1).roles["a"].own_machines == 3


def test_a_role_is_scaled_by_itself() -> None:
    """Down to none; never one that is not there, and never beyond its room."""
    spec = job(a={"script": "a.py", "replicas": 2, "per_machine": 2})
    assert spec.with_role("a", 4).roles["a"].replicas == 4
    assert JobSpec.model_validate(spec.with_role("a", 0).model_dump()).roles["a"].replicas == 0
    for name, replicas, text in (
        ("b", 1, "its roles are a"),
        ("a", 5, "room for 4"),
        ("trainer", 1, "its roles are a"),
    ):
        with pytest.raises(ValueError, match=text):
            spec.with_role(name, replicas)


def test_what_an_agent_sets_is_no_jobs_to_set() -> None:
    """A fixed RANK would make every rank the same one. Replicas may use the names of ranks among themselves."""
    mine = {"HOLDFAST_SAVE_PATIENCE_S": "2", "OMP_NUM_THREADS": "4"}
    assert not no_start(JobSpec.model_validate({**JOB, "env": mine}))
    assert "env: RANK: set by the agent" in no_start(JobSpec.model_validate({**JOB, "env": {"RANK": "1"}}))
    assert not no_start(job(a={"script": "a.py", "env": {"RANK": "1"}}))
    assert "roles.a.env: HOLDFAST_JOB" in no_start(job(a={"script": "a.py", "env": {"HOLDFAST_JOB": "b"}}))


def test_the_names_of_agents_are_those_that_they_set() -> None:
    names = {value for name, value in vars(wire).items() if name.startswith("ENV_")}
    names |= {value for name, value in vars(roles).items() if name.startswith("ENV_")}
    assert names - {wire.ENV_PATIENCE, wire.ENV_FAULTS} == OF_AGENTS

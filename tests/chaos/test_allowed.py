"""Chaos is refused where it is not allowed, makes no sense, or would hit another job; before anything is touched."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest

from holdfast.chaos import allowed, fault_plan
from holdfast.chaos.clean_run import why_differ
from holdfast.errors import RefusedError
from holdfast.inject import permission
from holdfast.models.alert import IncidentClass
from holdfast.models.job import Job, JobSpec, JobState, Mode
from holdfast.models.roles import RoleSpec
from holdfast.policies.config.policy import ModesPolicy, Policy
from holdfast.settings import Settings


def job(name: str = "gpt", state: JobState = JobState.RUNNING, mode: Mode = Mode.ACT) -> Job:
    spec = JobSpec(name=name, script="train.py", machines=2, ranks_per_machine=2, mode=mode)
    return Job(spec=spec, state=state, code_version="v1", machines=("m0", "m1"), epoch=1, submitted_at=0.0)


def site(tmp_path: Path, **settings: Any) -> Settings:
    known = {"prefect_auth": "user:password"} | settings
    return Settings(home=tmp_path, **known)


def test_a_real_engine_has_to_allow_it(tmp_path: Path) -> None:
    """The message names the setting; the local driver's machines are processes of one's own host."""
    with pytest.raises(RefusedError, match=r"driver slurm.*HOLDFAST_CHAOS_ALLOWED=true into .*settings\.env"):
        permission.require_site(site(tmp_path, driver="slurm"))
    permission.require_site(site(tmp_path, driver="slurm", chaos_allowed=True))
    permission.require_site(site(tmp_path))
    with pytest.raises(RefusedError, match="does not allow chaos"):
        permission.require_site(site(tmp_path, chaos_allowed=False))


def test_a_job_that_would_not_be_recovered_is_refused() -> None:
    """By its own mode, the policy's, or a class's; and one that does not run."""
    policy = Policy.load()
    allowed.require_job(job(), policy)
    for refused in (job(mode=Mode.OBSERVE), job(mode=Mode.CANARY), job(state=JobState.PAUSED)):
        with pytest.raises(RefusedError):
            allowed.require_job(refused, policy)
    modes = policy.modes.model_dump() | {"by_class": {IncidentClass.JOB_CRASH: Mode.OBSERVE}}
    with pytest.raises(RefusedError, match=r"class job_crash is observe"):
        allowed.require_job(job(), policy.model_copy(update={"modes": ModesPolicy.model_validate(modes)}))


@pytest.mark.parametrize(
    ("fault", "settings", "says"),
    [
        ("kill-prefect", {"prefect_api_url": "http://team/api"}, "kill-prefect: this site has no prefect"),
        ("stop-s3", {"s3_endpoint": "http://s3"}, "stop-s3: this site has no s3"),
        ("lock-database", {"database_url": "postgresql+psycopg://db/h"}, "lock-database: the ledger is not"),
        ("kill-rank", {"driver": "slurm"}, "kill-rank: machines of driver slurm"),
    ],
)
def test_what_a_site_does_not_have_is_refused_by_name(
    tmp_path: Path, fault: str, settings: dict[str, Any], says: str
) -> None:
    """All of it at once, not when its turn comes."""
    known = site(tmp_path, shared_secret="s" * 32, s3_secret_key="k" * 32, **settings)
    with pytest.raises(RefusedError, match=says):
        allowed.require_faults(known, [job()], "gpt", [("kill-gateway",), (fault,)], 1)


def test_services_of_other_jobs_are_left_alone(tmp_path: Path) -> None:
    """A gateway belongs to all jobs; a rank to one. Jobs that ended do not matter."""
    known = site(tmp_path, shared_secret="s" * 32, s3_secret_key="k" * 32)
    jobs = [job(), job("other")]
    allowed.require_faults(known, jobs, "gpt", [("kill-rank",)], 0)
    with pytest.raises(RefusedError, match="kill-gateway would hit other too"):
        allowed.require_faults(known, jobs, "gpt", [("kill-gateway",)], 0)
    allowed.require_faults(known, [job(), job("other", JobState.DONE)], "gpt", [("kill-gateway",)], 0)


def test_replicas_are_killed_where_there_are_roles(tmp_path: Path) -> None:
    """The trainer alone is none."""
    known = site(tmp_path, shared_secret="s" * 32, s3_secret_key="k" * 32)
    bare, rollout = job(), RoleSpec(script="rollout.py")
    for roles in ({}, {"trainer": RoleSpec(kind="rigid")}):
        without = bare.model_copy(update={"spec": bare.spec.model_copy(update={"roles": roles})})
        with pytest.raises(RefusedError, match="kill-replica: job 'gpt' has no roles beside its ranks"):
            allowed.require_faults(known, [without], "gpt", [("kill-replica",)], 0)
    those = bare.model_copy(update={"spec": bare.spec.model_copy(update={"roles": {"rollout": rollout}})})
    allowed.require_faults(known, [those], "gpt", [("kill-replica",)], 0)


@pytest.mark.parametrize(
    ("roles", "sizes", "why"),
    [
        ({}, {2}, ""),
        ({}, {3, 2}, "the job ran on 2 and 3 machines"),
        ({"rollout": RoleSpec(script="rollout.py")}, {2}, "depend on when replicas of rollout answer"),
    ],
)
def test_weights_that_may_differ_are_explained(roles: dict[str, RoleSpec], sizes: set[int], why: str) -> None:
    """Kept processes are no reason."""
    known = job().model_copy(update={"spec": job().spec.model_copy(update={"roles": roles})})
    assert why in why_differ(known, sizes)
    assert bool(why_differ(known, sizes)) is bool(why)


def test_a_fault_that_costs_a_machine_needs_a_standby(tmp_path: Path) -> None:
    """Else the job would wait for a machine, and nothing be learnt."""
    known = site(tmp_path, shared_secret="s" * 32, s3_secret_key="k" * 32)
    with pytest.raises(RefusedError, match="kill-machine costs the job a machine"):
        allowed.require_faults(known, [job()], "gpt", [("kill-machine",)], 0)


@pytest.mark.parametrize(
    ("every_s", "refused"),
    [
        (20.0, "kill-machine at 100 s: .*4 evictions in the last 60 min, 1 more asked, limit 4 of 4"),
        (1200.0, ""),
    ],
)
def test_a_plan_that_the_breaker_would_end_is_refused(every_s: float, refused: str) -> None:
    """The breaker forbids to replace the fifth machine within the hour: the game day would find a job that stands."""
    groups = fault_plan.parse("kill-machine")
    made = fault_plan.make(
        groups, every_s=every_s, for_s=6 * every_s, hold_s=1.0, seed=1, machines=4, ranks_per_machine=2
    )
    outcome = pytest.raises(RefusedError, match=refused) if refused else contextlib.nullcontext()
    with outcome:
        allowed.require_breaker(made, 4, 100, Policy.load().breaker)


def test_faults_that_cost_no_machine_are_not_counted_by_the_breaker() -> None:
    made = fault_plan.make(
        fault_plan.parse("kill-rank,stop-agent,kill-gateway"),
        every_s=20.0,
        for_s=600.0,
        hold_s=1.0,
        seed=1,
        machines=4,
        ranks_per_machine=2,
    )
    allowed.require_breaker(made, 4, 6, Policy.load().breaker)

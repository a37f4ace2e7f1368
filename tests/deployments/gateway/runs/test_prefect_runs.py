"""The gateway's knowledge of Prefect's deployments."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID, uuid4

import psutil
import pytest
from prefect.client.schemas.filters import DeploymentFilter, FlowRunFilter
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.client.schemas.responses import SetStateStatus
from prefect.exceptions import ObjectNotFound
from prefect.states import Running, State, Suspended

from holdfast import process_name
from holdfast.deployments.gateway.metrics import Metrics
from holdfast.deployments.gateway.runs import offline, prefect_runs
from holdfast.deployments.gateway.runs.flow_runs import RunPhase
from holdfast.deployments.gateway.runs.prefect_runs import PrefectRuns
from holdfast.models.alert import IncidentClass


class Api:
    """Prefect's client, as far as it is asked here."""

    def __init__(self) -> None:
        self.deployments = [each.value.replace("_", "-") for each in IncidentClass]
        self.listed = 0
        self.flow_runs: list[SimpleNamespace] = []
        self.set: dict[UUID, State[Any]] = {}
        self.refuses = False

    async def api_healthcheck(self) -> None:
        """It is well."""

    async def read_deployments(self, deployment_filter: DeploymentFilter) -> list[SimpleNamespace]:
        self.listed += 1
        assert deployment_filter.name
        wanted = set(deployment_filter.name.any_ or ())
        return [SimpleNamespace(name=name, id=uuid4()) for name in self.deployments if name in wanted]

    async def read_flow_runs(
        self, flow_run_filter: FlowRunFilter, deployment_filter: DeploymentFilter, limit: int
    ) -> list[SimpleNamespace]:
        assert flow_run_filter.state
        assert flow_run_filter.state.type
        assert flow_run_filter.state.type.any_ == [StateType.PAUSED]
        assert deployment_filter.name
        assert "fail-slow" in (deployment_filter.name.any_ or ())
        return self.flow_runs[:limit]

    async def read_flow_run(self, flow_run_id: UUID) -> SimpleNamespace:
        found = next((run for run in self.flow_runs if run.id == flow_run_id), None)
        if found is None:
            raise ObjectNotFound(None)
        return found

    async def set_flow_run_state(self, flow_run_id: UUID, state: State[Any]) -> SimpleNamespace:
        await self.read_flow_run(flow_run_id)
        if self.refuses:
            return SimpleNamespace(status=SetStateStatus.REJECT)
        self.set[flow_run_id] = state
        return SimpleNamespace(status=SetStateStatus.ACCEPT)


@pytest.fixture
def api() -> Api:
    return Api()


@pytest.fixture
def runs(api: Api, tmp_path: Path) -> PrefectRuns:
    made = PrefectRuns(tmp_path, tmp_path / "worker.sock", Metrics(), "holdfast")
    made._client = cast(Any, api)
    return made


async def test_deployments_are_listed_now_and_then(
    api: Api, runs: PrefectRuns, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A ping each two seconds must not read them all."""
    assert not await runs.ping()
    assert not await runs.ping()
    assert api.listed == 1
    monkeypatch.setattr(prefect_runs, "LIST_EVERY_S", 0.0)
    assert not await runs.ping()
    assert api.listed == 2


async def test_one_that_was_deleted_is_missed_and_asked_for_until_it_is_back(
    api: Api, runs: PrefectRuns, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its id is forgotten: one that is made again has another."""
    await runs.ping()
    known = runs._deployments["job-crash"]
    api.deployments.remove("job-crash")
    monkeypatch.setattr(prefect_runs, "LIST_EVERY_S", 0.0)
    assert await runs.ping() == ["job-crash"]
    monkeypatch.undo()
    assert await runs.ping() == ["job-crash"]
    api.deployments.append("job-crash")
    assert not await runs.ping()
    assert runs._deployments["job-crash"] != known


async def test_suspended_runs_name_the_incident_or_the_job_that_they_were_started_for(
    api: Api, runs: PrefectRuns
) -> None:
    """By their parameters, which a person may have given in any form."""
    asked: list[Any] = [{"id": "gpt-1", "attempt": 2}, {"job": "gpt", "id": None}, "gpt", None]
    api.flow_runs = [SimpleNamespace(id=uuid4(), parameters={"incident": each}) for each in asked]
    found = await runs.suspended()
    assert [(each.incident, each.job) for each in found] == [("gpt-1", ""), ("", "gpt"), ("", ""), ("", "")]
    assert [each.id for each in found] == [str(run.id) for run in api.flow_runs]


async def test_a_suspended_run_is_cancelled_with_the_reason(api: Api, runs: PrefectRuns) -> None:
    """One that was deleted, or answered and goes on, is left alone. What Prefect refuses is not cancelled."""
    run, going = (SimpleNamespace(id=uuid4(), state=state) for state in (Suspended(), Running()))
    api.flow_runs = [run, going]
    api.refuses = True
    assert not await runs.cancel(str(run.id), "incident gpt-1 is over")
    api.refuses = False
    assert await runs.cancel(str(run.id), "incident gpt-1 is over")
    assert not await runs.cancel(str(going.id), "incident gpt-2 is over")
    assert not await runs.cancel(str(uuid4()), "incident gpt-2 is over")
    (state,) = api.set.values()
    assert (state.type, state.message) == (StateType.CANCELLED, "incident gpt-1 is over")


def test_a_process_without_prefect_is_known_where_the_clock_was_set() -> None:
    """By boot and start in its name; ids of earlier releases have only the time of the wall clock."""
    me, created = f"{os.uname().nodename}:{os.getpid()}", psutil.Process().create_time()
    name = process_name.name_of(os.getpid())
    mark = name.partition("@")[2]
    assert offline.lives(name, f"{created + 3600:.2f}") is True
    assert offline.lives(name.replace("@", "@0", 1), f"{created:.2f}") is False
    assert offline.lives(me, f"{created:.2f}") is True
    assert offline.lives(me, f"{created + 3600:.2f}") is False
    assert offline.lives(f"another-host@{mark}") is None


def test_how_long_a_suspended_run_may_be_resumed_is_read() -> None:
    """Prefect fails a run that is resumed later than its pause's limit."""
    suspended: State[Any] = Suspended(timeout_seconds=3600)
    seen = prefect_runs._run(FlowRun(flow_id=uuid4(), state=suspended), None)
    assert seen.phase is RunPhase.SUSPENDED
    assert seen.resumable_s == pytest.approx(3600, abs=1)

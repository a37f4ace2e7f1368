"""What the gateway knows of Prefect's deployments."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from uuid import uuid4

import pytest
from prefect.client.schemas.filters import DeploymentFilter

from holdfast.deployments.gateway.metrics import Metrics
from holdfast.deployments.gateway.runs import prefect_runs
from holdfast.deployments.gateway.runs.prefect_runs import PrefectRuns
from holdfast.models.alert import IncidentClass


class Api:
    """Prefect's client, as far as it is asked here."""

    def __init__(self) -> None:
        self.deployments = [each.value.replace("_", "-") for each in IncidentClass]
        self.listed = 0

    async def api_healthcheck(self) -> None:
        """It is well."""

    async def read_deployments(self, deployment_filter: DeploymentFilter) -> list[SimpleNamespace]:
        self.listed += 1
        assert deployment_filter.name
        wanted = set(deployment_filter.name.any_ or ())
        return [SimpleNamespace(name=name, id=uuid4()) for name in self.deployments if name in wanted]


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
    """Its id is forgotten: one that is made anew has another."""
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

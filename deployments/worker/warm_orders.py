"""Orders for warm processes, made from flow runs: which flow, with which environment."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.filters import WorkPoolFilter, WorkPoolFilterName
from prefect.client.schemas.objects import FlowRun
from prefect.client.schemas.responses import DeploymentResponse

from holdfast.deployments.worker.run_process import Order
from holdfast.errors import RefusedError


class DeploymentCache:
    """Caches the deployments of the pool, so that a run need not wait for the server to return its own."""

    def __init__(self) -> None:
        self._deployments: dict[UUID, DeploymentResponse] = {}

    async def make(self, client: PrefectClient, flow_run: FlowRun) -> Order:
        """Return the order for ``flow_run``.

        Raises:
            RefusedError: it has no deployment, or one that this worker cannot run.
        """
        if flow_run.deployment_id is None:
            raise RefusedError("this worker runs deployments only, and the flow run has none")
        known = self._deployments.get(flow_run.deployment_id)
        deployment = known or await client.read_deployment(flow_run.deployment_id)
        variables: dict[str, Any] = {
            **(deployment.job_variables or {}).get("env", {}),
            **(flow_run.job_variables or {}).get("env", {}),
        }
        env = {key: str(value) for key, value in variables.items() if value is not None}
        return Order(flow_run.model_dump(mode="json"), _entrypoint(deployment), env)

    async def refresh(self, client: PrefectClient, pool: str) -> None:
        """Read the pool's deployments: they change rarely, and no run waits for it."""
        found = await client.read_deployments(
            work_pool_filter=WorkPoolFilter(name=WorkPoolFilterName(any_=[pool]))
        )
        self._deployments = {deployment.id: deployment for deployment in found}


def _entrypoint(deployment: DeploymentResponse) -> str:
    entrypoint = deployment.entrypoint or ""
    module, colon, _ = entrypoint.partition(":")
    if not colon or "/" in module or module.endswith(".py"):
        raise RefusedError(
            f"entrypoint {entrypoint!r} of deployment {deployment.name!r}: this worker runs module entrypoints "
            "(package.module:flow); use a pool of type process for files"
        )
    return entrypoint

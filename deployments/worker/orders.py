"""From a flow run to the order for a warm process: which flow, with which environment."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.objects import FlowRun
from prefect.client.schemas.responses import DeploymentResponse
from prefect.exceptions import ObjectNotFound

from holdfast.deployments.worker.run_process import Order
from holdfast.errors import RefusedError


class Orders:
    """Knows the deployments that were asked for before, so that their next run need not wait for the server."""

    def __init__(self) -> None:
        self._deployments: dict[UUID, DeploymentResponse] = {}

    async def make(self, client: PrefectClient, flow_run: FlowRun) -> Order:
        """The order for ``flow_run``.

        Raises:
            RefusedError: it has no deployment, or one that this worker cannot run.
        """
        if flow_run.deployment_id is None:
            raise RefusedError("this worker runs deployments only, and the flow run has none")
        known = self._deployments.get(flow_run.deployment_id)
        deployment = known or await self._read(client, flow_run.deployment_id)
        variables: dict[str, Any] = {
            **(deployment.job_variables or {}).get("env", {}),
            **(flow_run.job_variables or {}).get("env", {}),
        }
        env = {key: str(value) for key, value in variables.items() if value is not None}
        return Order(flow_run.model_dump(mode="json"), _entrypoint(deployment), env)

    async def refresh(self, client: PrefectClient) -> None:
        """Read the known deployments again: they change rarely, and no run waits for it."""
        for known in tuple(self._deployments):
            try:
                await self._read(client, known)
            except ObjectNotFound:
                del self._deployments[known]

    async def _read(self, client: PrefectClient, deployment_id: UUID) -> DeploymentResponse:
        deployment = await client.read_deployment(deployment_id)
        self._deployments[deployment_id] = deployment
        return deployment


def _entrypoint(deployment: DeploymentResponse) -> str:
    entrypoint = deployment.entrypoint or ""
    module, colon, _ = entrypoint.partition(":")
    if not colon or "/" in module or module.endswith(".py"):
        raise RefusedError(
            f"entrypoint {entrypoint!r} of deployment {deployment.name!r}: this worker runs module entrypoints "
            "(package.module:flow); use a pool of type process for files"
        )
    return entrypoint

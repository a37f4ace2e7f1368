"""Bring a Prefect server up to date with ``prefect.yaml``: the work pool and every deployment, any number of times."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from holdfast.deployments.worker import manifest
from holdfast.deployments.worker.environment import adopt, client_settings
from holdfast.errors import SettingsError, UnavailableError
from holdfast.settings import Settings

if TYPE_CHECKING:
    from prefect.client.orchestration import PrefectClient
    from prefect.client.schemas.objects import DeploymentSchedule
    from prefect.flows import Flow

POOL_TYPE = "holdfast"


def preload(settings: Settings) -> None:
    """Do what takes time and needs no server: import Prefect and every flow."""
    adopt(settings)
    for module in manifest.modules(manifest.all_deployments()):
        # One that fails is reported by :func:`register`, with its deployment.
        with contextlib.suppress(Exception):
            importlib.import_module(module)


async def register(settings: Settings) -> list[str]:
    """Make the work pool if it is missing and apply all deployments; returns their full names.

    A pool that exists keeps its type: one of type ``process`` serves stock ``prefect worker start`` too. A deployment
    that exists keeps its schedules: people may have paused, changed, added or deleted some.

    Raises:
        UnavailableError: the API does not answer.
        SettingsError: ``prefect.yaml`` or a flow that it names is wrong, or the server refused it.
    """
    # Importing Prefect takes most of a second and reads the environment: not before it is needed.
    adopt(settings)
    import httpx  # noqa: PLC0415
    from prefect.client.orchestration import get_client  # noqa: PLC0415
    from prefect.settings import temporary_settings  # noqa: PLC0415

    deployments = manifest.all_deployments()
    try:
        # Prefect may have been imported before, under another environment.
        with temporary_settings(client_settings(settings)):
            client = get_client()
        async with client:
            await _pool(client, settings.work_pool)
            known = await _schedules(client, deployments)
            # One after the other: side by side they meet SQLite's lock and wait seconds for it.
            return [
                await _apply(client, each, settings.work_pool, known.get((each.name, each.entrypoint)))
                for each in deployments
            ]
    except httpx.HTTPStatusError as error:
        raise SettingsError(
            f"Prefect at {settings.prefect_api} refused a deployment: {error}. See prefect.yaml."
        ) from error
    except httpx.HTTPError as error:
        raise UnavailableError(
            f"Prefect API at {settings.prefect_api}: {type(error).__name__} {error}".rstrip()
        ) from error


async def _pool(client: PrefectClient, name: str) -> None:
    from prefect.client.schemas.actions import WorkPoolCreate  # noqa: PLC0415
    from prefect.exceptions import ObjectAlreadyExists, ObjectNotFound  # noqa: PLC0415

    from holdfast.deployments.worker.worker import HoldfastWorker  # noqa: PLC0415

    try:
        await client.read_work_pool(name)
    except ObjectNotFound:
        template = HoldfastWorker.get_default_base_job_template()
        try:
            await client.create_work_pool(
                WorkPoolCreate(
                    name=name,
                    type=POOL_TYPE,
                    base_job_template=template,
                    description="Playbooks of Holdfast, in warm processes.",
                )
            )
        except ObjectAlreadyExists:
            # The worker was faster.
            return


async def _schedules(
    client: PrefectClient, deployments: Sequence[manifest.Deployment]
) -> dict[tuple[str, str | None], Sequence[DeploymentSchedule]]:
    """Return the schedules that the server has, by name and entrypoint of their deployments."""
    from prefect.client.schemas.filters import DeploymentFilter, DeploymentFilterName  # noqa: PLC0415

    named = DeploymentFilter(name=DeploymentFilterName(any_=[each.name for each in deployments]))
    found = await client.read_deployments(deployment_filter=named)
    return {(each.name, each.entrypoint): each.schedules for each in found}


async def _apply(
    client: PrefectClient,
    deployment: manifest.Deployment,
    pool: str,
    schedules: Sequence[DeploymentSchedule] | None,
) -> str:
    """Make or change one deployment; ``schedules``: those that it has, None: it is new."""
    from prefect.client.schemas.actions import DeploymentScheduleCreate  # noqa: PLC0415
    from prefect.client.schemas.schedules import CronSchedule  # noqa: PLC0415
    from prefect.flows import load_flow_from_entrypoint  # noqa: PLC0415
    from prefect.utilities.callables import parameter_schema  # noqa: PLC0415

    try:
        flow: Flow[..., Any] = load_flow_from_entrypoint(deployment.entrypoint, use_placeholder_flow=False)
    except Exception as error:
        raise SettingsError(
            f"deployment {deployment.name!r}: cannot load {deployment.entrypoint}: "
            f"{type(error).__name__}: {error}"
        ) from error
    await client.create_deployment(
        await client.create_flow_from_name(flow.name),
        deployment.name,
        entrypoint=deployment.entrypoint,
        version=flow.version,
        description=deployment.description,
        tags=list(deployment.tags),
        parameters=deployment.parameters,
        parameter_openapi_schema=parameter_schema(flow).model_dump(exclude_unset=True),
        enforce_parameter_schema=True,
        schedules=[
            DeploymentScheduleCreate(
                schedule=CronSchedule(cron=each.cron, timezone=each.timezone), active=each.active
            )
            for each in deployment.schedules
        ]
        if schedules is None
        # Made again as they are, since this request deletes them; what people deleted is not.
        else [
            DeploymentScheduleCreate(
                schedule=known.schedule, active=known.active, parameters=known.parameters, slug=known.slug
            )
            for known in schedules
        ],
        concurrency_limit=deployment.concurrency_limit,
        work_pool_name=pool,
        work_queue_name=deployment.work_pool.work_queue_name,
        job_variables=deployment.work_pool.job_variables,
        pull_steps=[],
    )
    return f"{flow.name}/{deployment.name}"

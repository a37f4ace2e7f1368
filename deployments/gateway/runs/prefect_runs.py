"""Flow runs of a Prefect server, through one client that stays open."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Collection
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx
from prefect.client.orchestration import PrefectClient, get_client
from prefect.client.schemas.filters import (
    DeploymentFilter,
    DeploymentFilterName,
    FlowRunFilter,
    FlowRunFilterState,
    FlowRunFilterStateType,
)
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.client.schemas.responses import OrchestrationResult, SetStateStatus
from prefect.exceptions import ObjectNotFound
from prefect.states import Cancelled

from holdfast.deployments.gateway.metrics import Metrics
from holdfast.deployments.gateway.runs import offline
from holdfast.deployments.gateway.runs.flow_runs import (
    PlaybookRun,
    RunPhase,
    Suspended,
    idempotency_key,
    parameters,
    run_name,
)
from holdfast.errors import NoPlaybookError, UnavailableError
from holdfast.models.alert import Incident, IncidentClass

TIMEOUT_S = 3.0
POKE_TIMEOUT_S = 1.0
LIST_EVERY_S = 10.0
"""Seconds between two reads of the deployments that Prefect has, while it has all."""
MOST_SUSPENDED = 200
"""Most suspended runs that are looked at in one round."""
MOST_MESSAGE = 300
"""Characters that are kept of the message of a run's state."""
_RAISED = "Flow run encountered an exception: "
"""Begins the message of a run whose flow raised."""

_PHASES = {
    StateType.SCHEDULED: RunPhase.WAITING,
    StateType.PENDING: RunPhase.WAITING,
    StateType.RUNNING: RunPhase.RUNNING,
    StateType.CANCELLING: RunPhase.RUNNING,
    StateType.PAUSED: RunPhase.SUSPENDED,
    StateType.COMPLETED: RunPhase.ENDED,
}


class PrefectRuns:
    """Creates and reads runs; pokes the playbook worker so that it need not poll."""

    def __init__(self, home: Path, worker_socket: Path, metrics: Metrics, work_pool: str) -> None:
        self._home = home
        self._worker_socket = worker_socket
        self._metrics = metrics
        self._work_pool = work_pool
        self._stack = AsyncExitStack()
        self._client: PrefectClient | None = None
        self._deployments: dict[str, UUID] = {}
        self._lacks: list[str] = []
        self._listed_at = float("-inf")

    async def open(self) -> None:
        """Open the client; whether the API answers shows later."""
        self._client = await self._stack.enter_async_context(get_client())

    async def close(self) -> None:
        """Close the client."""
        await self._stack.aclose()

    async def create(self, incident: Incident) -> str:
        """Create the run, then notify the worker."""
        return await self._create(
            _name(incident.incident_class),
            parameters(incident),
            idempotency_key(incident),
            name=run_name(incident),
            tags=[f"job:{incident.job}", f"incident:{incident.id}"],
        )

    async def start(self, deployment: str, parameters: dict[str, object], key: str) -> None:
        """Create the run, then notify the worker."""
        await self._create(deployment, parameters, key)

    async def _create(
        self,
        deployment: str,
        parameters: dict[str, object],
        key: str,
        name: str | None = None,
        tags: list[str] | None = None,
    ) -> str:
        deployment_id = await self._deployment(deployment)
        async with self._asking() as client:
            try:
                run = await client.create_flow_run_from_deployment(
                    deployment_id, parameters=parameters, name=name, idempotency_key=key, tags=tags
                )
            except (ObjectNotFound, httpx.HTTPStatusError) as error:
                # The deployment may have been recreated under another id.
                self._deployments.pop(deployment, None)
                raise UnavailableError(f"Prefect refused a run of {deployment}: {error}") from error
        await self._poke(run)
        return str(run.id)

    async def read(self, run_id: str) -> PlaybookRun | None:
        """Read a run of Prefect's, or one without Prefect."""
        if offline.is_offline(run_id):
            return offline.read(run_id)
        try:
            flow_run_id = UUID(run_id)
        except ValueError:
            return None
        async with self._asking() as client:
            try:
                found = await client.read_flow_run(flow_run_id)
            except ObjectNotFound:
                return None
        return _run(found, offline.lives(found.infrastructure_pid))

    async def ping(self) -> Collection[str]:
        """Ask for health; now and then also for the deployments, so that no incident waits for that."""
        async with self._asking() as client:
            if error := await client.api_healthcheck():
                raise UnavailableError(f"Prefect's API: {type(error).__name__} {error}".rstrip())
        if not self._lacks and time.monotonic() - self._listed_at < LIST_EVERY_S:
            return ()
        async with self._asking() as client:
            # It also brings the CSRF token that a request which changes something needs, where the server wants one.
            found = await client.read_deployments(deployment_filter=_playbooks())
        self._listed_at = time.monotonic()
        self._deployments |= {each.name: each.id for each in found}
        self._lacks = sorted({*_names()} - {each.name for each in found})
        for name in self._lacks:
            self._deployments.pop(name, None)
        return self._lacks

    async def resume(self, run_id: str, answer: dict[str, object]) -> None:
        """Resume a suspended run; a process without Prefect reads the ledger by itself."""
        if offline.is_offline(run_id):
            return
        async with self._asking() as client:
            try:
                found = await client.resume_flow_run(UUID(run_id), run_input=answer)
                run = await client.read_flow_run(UUID(run_id))
            except (ObjectNotFound, httpx.HTTPStatusError, ValueError) as error:
                raise UnavailableError(f"Prefect did not resume run {run_id}: {error}") from error
        # Prefect answers 200 also when it refuses the input.
        if found.status is SetStateStatus.REJECT and found.state and found.state.is_paused():
            raise UnavailableError(f"Prefect did not resume run {run_id}: {found.details}")
        await self._poke(run)

    async def suspended(self) -> list[Suspended]:
        """Read the suspended runs of playbooks' deployments."""
        paused = FlowRunFilter(state=FlowRunFilterState(type=FlowRunFilterStateType(any_=[StateType.PAUSED])))
        async with self._asking() as client:
            found = await client.read_flow_runs(
                flow_run_filter=paused, deployment_filter=_playbooks(), limit=MOST_SUSPENDED
            )
        return [_suspended(run) for run in found]

    async def cancel(self, run_id: str, why: str) -> bool:
        """Cancel a suspended run: no process of it has to be ended. Return whether Prefect took it."""
        async with self._asking() as client:
            try:
                run = await client.read_flow_run(UUID(run_id))
                if run.state is None or not run.state.is_paused():
                    return False  # it was answered meanwhile
                found: OrchestrationResult[Any] = await client.set_flow_run_state(
                    run.id, Cancelled(message=why)
                )
            except (ObjectNotFound, ValueError):
                return False
        return found.status is SetStateStatus.ACCEPT

    async def offline(self, incident: Incident) -> str:
        """Run the playbook in a process of its own, with a private server."""
        return await asyncio.to_thread(offline.spawn, self._home, incident)

    async def _deployment(self, flow: str) -> UUID:
        if known := self._deployments.get(flow):
            return known
        async with self._asking() as client:
            try:
                found = await client.read_deployment_by_name(f"{flow}/{flow}")
            except ObjectNotFound:
                raise NoPlaybookError(
                    f"Prefect has no deployment {flow}/{flow}: run `prefect deploy --all`"
                ) from None
        self._deployments[flow] = found.id
        return found.id

    @asynccontextmanager
    async def _asking(self) -> AsyncIterator[PrefectClient]:
        """Yield the client with a time limit: it would retry much longer than a recovery can wait."""
        if self._client is None:
            raise UnavailableError("Prefect's client is not open")
        try:
            async with asyncio.timeout(TIMEOUT_S):
                yield self._client
        except TimeoutError:
            raise UnavailableError(f"Prefect's API did not answer within {TIMEOUT_S:g} s") from None
        except (httpx.HTTPError, RuntimeError) as error:
            raise UnavailableError(f"Prefect's API: {type(error).__name__} {error}".rstrip()) from error

    async def _poke(self, run: FlowRun) -> None:
        """Notify the worker, best effort: otherwise it finds the run by polling. Runs of other pools are not its."""
        if run.work_pool_name not in (None, self._work_pool):
            return
        try:
            async with asyncio.timeout(POKE_TIMEOUT_S):
                _, writer = await asyncio.open_unix_connection(self._worker_socket)
                writer.write(f"{run.id}\n".encode())
                await writer.drain()
                writer.close()
                await writer.wait_closed()
        except (OSError, TimeoutError):
            self._metrics.pokes.labels("failed").inc()
        else:
            self._metrics.pokes.labels("sent").inc()


def _name(incident_class: IncidentClass) -> str:
    return incident_class.value.replace("_", "-")


def _names() -> list[str]:
    """Return the names of the playbooks' deployments."""
    return [_name(incident_class) for incident_class in IncidentClass]


def _playbooks() -> DeploymentFilter:
    return DeploymentFilter(name=DeploymentFilterName(any_=_names()))


def _suspended(found: FlowRun) -> Suspended:
    asked = found.parameters.get("incident")
    known = asked if isinstance(asked, dict) else {}
    return Suspended(id=str(found.id), incident=str(known.get("id") or ""), job=str(known.get("job") or ""))


def _run(found: FlowRun, alive: bool | None) -> PlaybookRun:
    state = found.state
    if state is None:
        return PlaybookRun(
            id=str(found.id), phase=RunPhase.WAITING, state="Unknown", since=_time(found.created)
        )
    since = _time(state.timestamp)
    if state.state_details.scheduled_time:
        since = max(since, _time(state.state_details.scheduled_time))
    until = state.state_details.pause_timeout
    return PlaybookRun(
        id=str(found.id),
        phase=_PHASES.get(state.type, RunPhase.FAILED),
        state=state.name or state.type.value,
        since=since,
        alive=alive,
        resumable_s=None if until is None else _time(until) - since,
        message=" ".join((state.message or "").removeprefix(_RAISED).split())[:MOST_MESSAGE],
        raised=state.type is StateType.FAILED,
    )


def _time(moment: object) -> float:
    return float(moment.timestamp()) if hasattr(moment, "timestamp") else time.time()

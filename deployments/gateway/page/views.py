"""Routes of what the status page draws: one JSON per view, polled with ETag; and a rank's stack, taken on demand."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from holdfast.deployments.gateway.api.read import ClassFilter, Limit
from holdfast.deployments.gateway.gateway import Gateway
from holdfast.deployments.gateway.page.answers import Answers
from holdfast.deployments.gateway.page.incident_list import incident_list
from holdfast.deployments.gateway.page.incident_view import incident_view
from holdfast.deployments.gateway.page.job_view import job_view
from holdfast.deployments.gateway.page.overview import RECENT, overview
from holdfast.deployments.gateway.page.rank_view import rank_view, ranks_view, steps_view
from holdfast.errors import UnknownError
from holdfast.models.alert import IncidentState
from holdfast.models.names import IncidentId, JobName, Rank

STACKS_AT_ONCE = 2
TypedName = Annotated[str | None, Query(max_length=100)]
"""As a person types it: what is no name finds nothing."""


def routes(gateway: Gateway) -> APIRouter:
    """Return the routes, for this gateway."""
    router = APIRouter(prefix="/v1/page")
    site, turn = gateway.site, asyncio.Semaphore(STACKS_AT_ONCE)
    answers = Answers(acts=lambda: site.acts)

    async def give(request: Request, key: str, make: Callable[[], Mapping[str, Any]]) -> Response:
        return await answers.give(request, key, make, site.clock.now())

    @router.get("/overview")
    async def first(request: Request) -> Response:
        return await give(request, "overview", lambda: overview(gateway))

    @router.get("/by-hand")
    async def by_hand(request: Request) -> Response:
        def make() -> dict[str, Any]:
            return {"by_hand": [entry.model_dump(mode="json") for entry in site.ledger.by_hand()]}

        return await give(request, "by-hand", make)

    @router.get("/jobs/{name}")
    async def job(request: Request, name: JobName) -> Response:
        return await give(request, f"job {name}", lambda: job_view(gateway, name))

    @router.get("/jobs/{name}/ranks")
    async def ranks(request: Request, name: JobName) -> Response:
        return await give(request, f"ranks {name}", lambda: ranks_view(gateway, name))

    @router.get("/jobs/{name}/steps")
    async def steps(request: Request, name: JobName) -> Response:
        return await give(request, f"steps {name}", lambda: steps_view(gateway, name))

    @router.get("/jobs/{name}/ranks/{rank}")
    async def one_rank(request: Request, name: JobName, rank: Rank) -> Response:
        return await give(request, f"rank {name} {rank}", lambda: rank_view(gateway, name, rank))

    @router.get("/jobs/{name}/ranks/{rank}/stack")
    async def stack(name: JobName, rank: Rank) -> dict[str, Any]:
        known = await site.job(name)
        if not 0 <= rank < known.spec.world_size or not known.machines:
            raise UnknownError(f"job {name} runs no rank {rank}")
        machine = await site.machine(known.machine_of(rank))
        async with turn:  # a dump stops processes for a moment: people must not add up
            dumps = await gateway.acts.stacks(machine, name, known.epoch)
        mine = [dump.model_dump(mode="json") for dump in dumps if dump.rank == rank]
        return {"rank": rank, "machine": machine.name, "at": site.clock.now(), "stacks": mine}

    @router.get("/incidents")
    async def incidents(  # noqa: PLR0917  (a query's parameters)
        request: Request,
        job: TypedName = None,
        machine: TypedName = None,
        class_: ClassFilter = None,
        state: IncidentState | None = None,
        limit: Limit = RECENT,
    ) -> Response:
        def make() -> dict[str, Any]:
            return incident_list(
                gateway, job=job, machine=machine, incident_class=class_, state=state, limit=limit
            )

        return await give(request, f"incidents {job!r} {machine!r} {class_} {state} {limit}", make)

    @router.get("/incidents/{incident_id}")
    async def incident(request: Request, incident_id: IncidentId) -> Response:
        return await give(request, f"incident {incident_id}", lambda: incident_view(gateway, incident_id))

    return router

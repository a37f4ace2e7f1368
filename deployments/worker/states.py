"""States of flow runs as the worker sets them: claimed, crashed, cancelled."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID

from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterState,
    FlowRunFilterStateType,
    WorkPoolFilter,
    WorkPoolFilterName,
)
from prefect.client.schemas.objects import FlowRun, State, StateType
from prefect.exceptions import Abort, ObjectNotFound
from prefect.logging.loggers import flow_run_logger
from prefect.states import Cancelled, Crashed, Pending
from prefect.utilities.engine import propose_state

from holdfast import process_name
from holdfast.errors import RefusedError

_WORKER_LABEL = "prefect.worker.name"


async def claim(client: PrefectClient, flow_run_id: UUID) -> FlowRun:
    """Propose Pending and read the run, at the same time. The server grants a claim once.

    It also grants one of a run that has ended, which a late poke or a slow poll may ask for: that run is put back.
    The granted state shows where it came from, since the server copies the time of a scheduled state.

    Raises:
        RefusedError: the run is not ours to start: taken, over, cancelled, not due, or there is none.
    """
    proposed: State[Any] = Pending()
    try:
        state, flow_run = await asyncio.gather(
            propose_state(client, proposed, flow_run_id=flow_run_id),
            client.read_flow_run(flow_run_id),
        )
    except (Abort, ObjectNotFound) as error:
        raise RefusedError(f"flow run {flow_run_id} is not ours to start: {error}") from None
    if not state.is_pending():
        raise RefusedError(f"flow run {flow_run_id} is not to be started now: {state.name}")
    if state.state_details.scheduled_time is None and (
        ended := await _ended_before(client, flow_run_id, state)
    ):
        await client.set_flow_run_state(flow_run_id, ended, force=True)
        raise RefusedError(f"flow run {flow_run_id} is over: {ended.name}")
    claimed: FlowRun = flow_run.model_copy(
        update={"state": state, "state_type": state.type, "state_name": state.name}
    )
    return claimed


async def _ended_before(client: PrefectClient, flow_run_id: UUID, claimed: State[Any]) -> State[Any] | None:
    """Return the final state that ``claimed`` replaced, if it was one.

    A state that was not scheduled is granted over a final one alone. Times do not give the order: the server takes a
    state's time before it waits for the database, so that a claim may be older than the end that it replaced.
    """
    history = await client.read_flow_run_states(flow_run_id)
    ended = [state for state in history if state.is_final() and state.id != claimed.id]
    return max(ended, key=lambda state: state.timestamp, default=None)


async def finish(client: PrefectClient, flow_run_id: UUID, how: str, *, cancelled: bool = False) -> None:
    """Put a run whose process is gone into a final state, unless its engine did so itself.

    Args:
        client: of the API.
        flow_run_id: the run; one that was deleted needs nothing.
        how: what ended its process, for the message.
        cancelled: its end was requested.
    """
    try:
        flow_run = await client.read_flow_run(flow_run_id)
    except ObjectNotFound:
        return
    state = flow_run.state
    if state is not None and (state.is_final() or state.is_scheduled() or state.is_paused()):
        return
    if cancelled or (state is not None and state.is_cancelling()):
        final: State[Any] = Cancelled(message="Cancelled; its process had to be killed.")
    else:
        final = Crashed(message=f"The run's process ended with {how} before it reported a result.")
        flow_run_logger(flow_run=flow_run).error(final.message)
    await client.set_flow_run_state(flow_run_id, final, force=True)


async def sweep(client: PrefectClient, pool: str, worker: str, under_way: set[UUID]) -> None:
    """Finish runs that died together with a former worker of this name, process and all.

    Else they stay Running for ever, and hold the slots of their deployment's concurrency limit.
    """
    started = [StateType.PENDING, StateType.RUNNING, StateType.CANCELLING]
    for seen in await client.read_flow_runs(
        flow_run_filter=FlowRunFilter(state=FlowRunFilterState(type=FlowRunFilterStateType(any_=started))),
        work_pool_filter=WorkPoolFilter(name=WorkPoolFilterName(any_=[pool])),
    ):
        mine = seen.labels.get(_WORKER_LABEL) == worker and seen.id not in under_way
        # Whose process it is shows by the host in its name, as the process worker of Prefect writes it, too.
        name = seen.infrastructure_pid or ""
        if mine and ":" in name and process_name.lives(name) is False:
            await finish(client, seen.id, "its worker")

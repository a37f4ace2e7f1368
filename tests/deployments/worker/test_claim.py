"""Claiming a flow run: what the server grants is not always ours to start."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from prefect.client.schemas.objects import FlowRun, State
from prefect.client.schemas.responses import OrchestrationResult, SetStateStatus, StateAcceptDetails
from prefect.states import Completed, Pending, Running, Scheduled

from holdfast.deployments.worker import states
from holdfast.errors import RefusedError

RUN = UUID(int=7)


@dataclass
class Server:
    """A client of a server that grants every claim, and takes its time ``early`` before what it replaces."""

    history: list[State[Any]]
    early: timedelta = timedelta()
    forced: list[State[Any]] = field(default_factory=list)

    async def set_flow_run_state(
        self, flow_run_id: UUID, state: State[Any], force: bool = False
    ) -> OrchestrationResult[Any]:
        if force:
            self.forced.append(state)
        last = self.history[-1]
        state = state.model_copy(update={"id": uuid4(), "timestamp": _after(last) - self.early})
        if last.is_scheduled():
            state.state_details.scheduled_time = last.state_details.scheduled_time
        self.history.append(state)
        return OrchestrationResult(state=state, status=SetStateStatus.ACCEPT, details=StateAcceptDetails())

    async def read_flow_run(self, flow_run_id: UUID) -> FlowRun:
        return FlowRun(id=flow_run_id, flow_id=uuid4(), state=self.history[-1])

    async def read_flow_run_states(self, flow_run_id: UUID) -> list[State[Any]]:
        return sorted(self.history, key=lambda state: state.timestamp)


def _after(state: State[Any]) -> datetime:
    return state.timestamp + timedelta(milliseconds=10)


def _ran() -> list[State[Any]]:
    return [Scheduled(), Pending(), Running(), Completed()]


@pytest.mark.parametrize("early", [timedelta(), timedelta(milliseconds=15)], ids=["in order", "granted late"])
def test_a_run_that_is_over_is_put_back(early: timedelta) -> None:
    """Also when the claim waited for the database and is older than the end that it replaced."""
    server = Server(_ran(), early)
    with pytest.raises(RefusedError, match="is over: Completed"):
        asyncio.run(states.claim(server, RUN))  # type: ignore[arg-type]
    assert [state.name for state in server.forced] == ["Completed"]


@pytest.mark.parametrize("before", [[], _ran()], ids=["new", "retried"])
def test_a_scheduled_run_is_ours(before: list[State[Any]]) -> None:
    """Also one that ended before and was scheduled again by a person."""
    server = Server([*before, Scheduled()])
    claimed = asyncio.run(states.claim(server, RUN))  # type: ignore[arg-type]
    assert claimed.state_name == "Pending"
    assert server.forced == []

"""The vote for the machines that make a job slow: stacks of a training job, and the groups that its processes made."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.clock import FakeClock
from holdfast.models.agent import FlightRecord, StackDump
from holdfast.models.alert import Classification, IncidentClass
from holdfast.models.job import JobSpec, JobState
from holdfast.models.machine import Machine
from holdfast.operations import fleet
from holdfast.operations.context import Context
from holdfast.settings import Settings
from holdfast.tasks import slow
from holdfast.tasks.recovery_context import RecoveryContext
from holdfast.testing.play import without_prefect
from holdfast.testing.scripted_agent import WAITING, WORKING
from tests.storage.ledger.samples import register

MACHINES = 16
MADE = (2, 5)
"""Ranks of one process group, which the job file does not name."""


class Agent:
    """One rank, whose stack stands out where it is of the group that lags."""

    def __init__(self, rank: int, asked: list[str], lagging: tuple[int, ...]) -> None:
        self._rank, self._asked, self._lagging = rank, asked, lagging

    async def stacks(self, _job: str, _epoch: int) -> list[StackDump]:
        self._asked.append("stacks")
        frame = WORKING if self._rank in self._lagging else WAITING
        return [
            StackDump(machine=f"m{self._rank}", rank=self._rank, pid=9, process_state="S", frames=(frame,))
        ]

    async def flight_records(self, _job: str, _epoch: int) -> list[FlightRecord]:
        self._asked.append("flight_records")
        ranks = MADE if self._rank in MADE else ()
        return [FlightRecord(rank=self._rank, group="g", ranks=ranks, enqueued=1, completed=1)]


@pytest.fixture
def case(tmp_path: Path) -> RecoveryContext:
    """An incident of a job that trains, without a layout in its job file."""
    policy = tmp_path / "policy.yaml"
    policy.write_text("diagnose: {slow_interval_s: 0.01}\n")
    ctx = Context(Settings(home=tmp_path, policy_file=policy), clock=FakeClock(1000.0))
    ctx.ledger.create()
    names = [f"m{number}" for number in range(MACHINES)]
    for name in names:
        register(ctx.ledger, name)
    spec = JobSpec(name="gpt", script="train.py", machines=MACHINES, ranks_per_machine=1)
    ctx.ledger.add_job(spec, "v1")
    ctx.ledger.set_job("gpt", machines=names, state=JobState.RUNNING)
    found = Classification(incident_class=IncidentClass.FAIL_SLOW, confidence=0.9, reasons=("test",))
    incident = ctx.ledger.open_incident("gpt", found, ctx.ledger.next_epoch("gpt"), [], 1000.0)
    return RecoveryContext(
        incident_id=incident.id,
        attempt=1,
        job="gpt",
        incident_class=incident.incident_class,
        broken_epoch=1,
    ).within(ctx)


@pytest.mark.parametrize(
    ("lagging", "suspects", "asks"),
    [(MADE, ("m2", "m5"), True), ((7,), ("m7",), False), ((2, 9), (), True)],
)
async def test_process_groups_name_who_lags_together(
    case: RecoveryContext,
    monkeypatch: pytest.MonkeyPatch,
    lagging: tuple[int, ...],
    suspects: tuple[str, ...],
    asks: bool,
) -> None:
    """Read once, after the looks, and only where outliers are on several machines."""
    asked: list[str] = []

    async def ask(
        _ctx: Context, machines: list[Machine], command: Callable[[Any, Machine], Awaitable[Any]]
    ) -> dict[str, Any]:
        return {
            each.name: await command(Agent(int(each.name[1:]), asked, lagging), each) for each in machines
        }

    monkeypatch.setattr(fleet, "ask", ask)
    with without_prefect():
        verdict = await slow.vote_slow.fn(case)
    assert verdict.suspects == suspects, verdict.evidence
    assert asked.count("flight_records") == (MACHINES if asks else 0)

"""Hand back the machine that a planned move left, and no later machine of the same name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from prefect.logging import disable_run_logger

from holdfast.clock import FakeClock
from holdfast.drivers.base import Supplied, require_unit
from holdfast.models.agent import Register
from holdfast.models.alert import Alert, AlertKind, Classification, IncidentClass
from holdfast.models.job import JobSpec
from holdfast.models.machine import MachineState, Scope
from holdfast.operations.context import Context
from holdfast.settings import Settings
from holdfast.tasks import switch
from holdfast.tasks.recovery_context import RecoveryContext


class Engine:
    """Evicts the unit that is meant, or none."""

    name = "kubernetes"

    def __init__(self) -> None:
        self.unit = "u1"
        self.evicted: list[str] = []

    def machines(self) -> list[Supplied]:
        return [Supplied(name="m1", alive="m1" not in self.evicted)]

    def evict(self, machine: str, scope: Scope, reason: str, incarnation: str = "") -> None:
        require_unit(machine, incarnation, self.unit)
        self.evicted.append(machine)


@pytest.fixture
def engine() -> Engine:
    return Engine()


@pytest.fixture
def ctx(tmp_path: Path, engine: Engine) -> Iterator[Context]:
    made = Context(Settings(home=tmp_path), clock=FakeClock(1000.0))
    made.ledger.create()
    made.__dict__["driver"] = engine
    for name in ("m0", "m1"):
        register(made, name, "a@u1")
    made.ledger.add_job(JobSpec(name="gpt", script="t.py", machines=2, ranks_per_machine=1), "v1")
    made.ledger.claim_standbys("gpt", 2)
    made.ledger.set_job("gpt", machines=("m0",))
    with disable_run_logger():
        yield made


def register(ctx: Context, name: str, incarnation: str) -> None:
    ctx.ledger.register(
        Register(machine=name, incarnation=incarnation, address="127.0.0.1:1", data_address="", pid=1)
    )


async def handed_back(ctx: Context) -> str:
    """The result for m1, which its job has left because its node is drained."""
    found = Classification(
        incident_class=IncidentClass.PLANNED_MOVE, confidence=1, machine="m1", reasons=("drain",)
    )
    drain = Alert(
        kind=AlertKind.PLANNED_MOVE,
        job="gpt",
        machine="m1",
        incarnation="a@u1",
        at=1.0,
        evidence={"source": "drain", "text": "node n1 is cordoned"},
    )
    incident = ctx.ledger.open_incident("gpt", found, 1, [drain], 1.0)
    ctx.ledger.take_job(incident.id, 1, "run 1", "run 1", 60)
    case = RecoveryContext(
        incident_id=incident.id,
        attempt=1,
        job="gpt",
        incident_class=IncidentClass.PLANNED_MOVE,
        broken_epoch=0,
        machine="m1",
        lease="run 1",
    ).within(ctx)
    return await switch.hand_back.fn(case)


async def test_drained_machine_is_taken_out(ctx: Context, engine: Engine) -> None:
    """Control: its agent may have restarted, it is the same pod."""
    register(ctx, "m1", "b@u1")
    assert await handed_back(ctx) == "cordon"
    assert engine.evicted == ["m1"]
    assert ctx.ledger.machine("m1").state is MachineState.CORDONED


@pytest.mark.parametrize(
    ("registered", "state"), [(True, MachineState.STANDBY), (False, MachineState.PROVISIONING)]
)
async def test_pod_that_the_drain_replaced_is_no_drained_machine(
    ctx: Context, engine: Engine, registered: bool, state: MachineState
) -> None:
    """It is on another node by now, which nothing speaks against, registered or not yet."""
    engine.unit = "u2"
    if registered:
        register(ctx, "m1", "b@u2")
    assert await handed_back(ctx) == "restarted since"
    assert engine.evicted == []
    machine = ctx.ledger.machine("m1")
    assert (machine.state, machine.job) == (state, None)

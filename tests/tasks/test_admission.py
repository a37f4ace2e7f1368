"""The measurements of checks decide whether a machine that comes may stand by."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.models import agent as wire
from holdfast.models.alert import Finding
from holdfast.models.machine import Machine, MachineState
from holdfast.operations.context import Context
from holdfast.settings import Settings
from holdfast.tasks.context import use
from holdfast.tasks.standby_checks import Admission, admit, check_applicants
from tests.storage.ledger.samples import register

COMES = "m4"


class Agent:
    """Passes everything; its product costs as much as the test sets."""

    def __init__(self, machine: Machine, costs: dict[str, float]) -> None:
        self._machine, self._costs = machine, costs

    async def state(self) -> wire.AgentState:
        return wire.AgentState(machine=self._machine.name, incarnation=self._machine.incarnation)

    async def open_rendezvous(self, _: wire.OpenRendezvous) -> wire.Rendezvous:
        return wire.Rendezvous(host="127.0.0.1", port=1)

    async def settle(self, _: wire.Fence, *, connect_s: float = 0.0) -> wire.Settled:
        return wire.Settled(state=await self.state())

    async def diagnose(self, command: wire.Diagnose) -> list[Finding]:
        name = self._machine.name
        assert command.whole or command.peer, "all GPUs of it are free"
        more: dict[str, Any] = {"peer": command.peer or None}
        if command.check == wire.Check.MATMUL:
            more |= {"value": self._costs.get(name, 1.0), "unit": "s", "repeats": 5, "kind": "H100"}
        return [Finding(check=command.check, machine=name, ok=True, **more)]


@pytest.fixture
def ctx(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Context, dict[str, float]]]:
    """Four standbys, and one that waits for admission; what products cost may be set."""
    ctx, costs = Context(Settings(home=tmp_path)), {}
    ctx.ledger.create()
    for number in range(5):
        register(ctx.ledger, f"m{number}")
    for number in range(4):
        ctx.ledger.set_machine(f"m{number}", state=MachineState.STANDBY)
    ctx.ledger.set_machine(COMES, state=MachineState.PROVISIONING)
    monkeypatch.setattr(ctx, "agent", lambda machine: Agent(machine, costs))
    use(ctx)
    yield ctx, costs
    use(None)


@pytest.mark.parametrize(
    ("costs", "admitted"),
    [
        pytest.param({}, True, id="as fast as the standbys"),
        pytest.param({COMES: 3.0}, False, id="three times slower"),
        pytest.param({"m0": 3.0}, True, id="a standby is slow: not its fault"),
    ],
)
async def test_a_slow_machine_is_not_admitted(
    ctx: tuple[Context, dict[str, float]], costs: dict[str, float], admitted: bool
) -> None:
    """It waits; it is compared with standbys, which stay what they are."""
    site, known = ctx
    known.update(costs)
    checked = await check_applicants.fn(Admission())
    did = await admit.fn(checked)
    state = site.ledger.machine(COMES).state
    assert state is (MachineState.STANDBY if admitted else MachineState.PROVISIONING), did
    assert admitted or f"{COMES} wait" in did
    assert any("3.0x" in line for line in checked.verdict.evidence) is bool(costs)
    assert {site.ledger.machine(f"m{number}").state for number in range(4)} == {MachineState.STANDBY}


@pytest.mark.parametrize("slow", [(COMES,), (COMES, "m5")])
async def test_two_machines_that_come_together_are_compared_with_standbys(
    ctx: tuple[Context, dict[str, float]], slow: tuple[str, ...]
) -> None:
    """Two alone show nothing, and a bad batch shows nothing among itself."""
    site, costs = ctx
    register(site.ledger, "m5")
    site.ledger.set_machine("m5", state=MachineState.PROVISIONING)
    costs.update(dict.fromkeys(slow, 3.0))
    did = await admit.fn(await check_applicants.fn(Admission()))
    waiting = {name for name in (COMES, "m5") if site.ledger.machine(name).state is MachineState.PROVISIONING}
    assert waiting == {*slow}, did


async def test_a_machine_that_was_cordoned_while_it_was_checked_stays_so(
    ctx: tuple[Context, dict[str, float]],
) -> None:
    """Its GPU was lost meanwhile: the checks that it passed are of the time before."""
    site, _ = ctx
    checked = await check_applicants.fn(Admission())
    assert site.ledger.lose(COMES, "i1", None, "a GPU is lost", MachineState.CORDONED)
    did = await admit.fn(checked)
    assert site.ledger.machine(COMES).state is MachineState.CORDONED
    assert f"{COMES} changed since" in did

"""Repairs with the vendors' tools as stubs on PATH: the commands, their results, and the machines left alone."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from prefect.logging import disable_run_logger

from holdfast.clock import FakeClock
from holdfast.drivers.base import Supplied, require_unit
from holdfast.errors import RefusedError, StaleError, UnavailableError
from holdfast.models.agent import Register
from holdfast.models.alert import Alert, AlertKind, Classification, Finding, IncidentClass
from holdfast.models.job import JobSpec
from holdfast.models.machine import MachineState, Scope
from holdfast.models.repair import Ask, Repair, RepairState, Step, StepState
from holdfast.operations.context import Context
from holdfast.operations.evict import order_repair
from holdfast.policies.diagnose import verdicts
from holdfast.settings import Settings
from holdfast.tasks import evict as evicting
from holdfast.tasks import repair, repair_acts, standby_checks
from holdfast.tasks.context import use
from holdfast.tasks.recovery_context import RecoveryContext
from holdfast.tasks.repair import HeldRepair, Repairing
from tests.tasks.repair_tools import Tools

POLICY = "repair: {enabled: true, burn_in_s: 3, reset_s: 20, return_s: 5, diagnose: 'eud'}\n"


class Engine:
    """A driver whose machines register when they are released."""

    name = "local"

    def __init__(self) -> None:
        self.units = {"m0": "u1", "m1": "u1"}
        self.did: list[str] = []
        self.reboots = True
        self.comes_back = True
        self.register: Callable[[str, str], None] = lambda name, incarnation: None

    def machines(self) -> list[Supplied]:
        return [Supplied(name=name, alive=bool(unit)) for name, unit in self.units.items()]

    def evict(self, machine: str, scope: Scope, reason: str, incarnation: str = "") -> None:
        require_unit(machine, incarnation, self.units[machine])
        self.units[machine] = ""

    def reboot(self, machine: str, reason: str, incarnation: str, wait_s: float) -> str:
        self.did.append(f"reboot {machine}")
        if not self.reboots:
            raise UnavailableError(f"machine {machine} was not seen to restart within {wait_s:g} s")
        return "booted"

    def release(self, machine: str, incarnation: str = "") -> None:
        require_unit(machine, incarnation, self.units[machine])
        self.did.append(f"release {machine}")
        if self.comes_back:
            self.units[machine] = "u2"
            self.register(machine, "b@u2")


class Agent:
    """Answers with the life that is registered."""

    def __init__(self, incarnation: str) -> None:
        self.incarnation = incarnation

    async def state(self) -> Agent:
        return self

    async def settle(self, *_: Any, **__: Any) -> None:
        raise UnavailableError("its GPU took it down")


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tools:
    made = Tools(tmp_path / "bin")
    monkeypatch.setenv("PATH", f"{made.folder}:{os.environ['PATH']}")
    return made


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> list[Finding]:
    """Findings of every round of delivery checks."""
    found: list[Finding] = [Finding(check="matmul", machine="m1", ok=True)]

    async def check(ctx: Context, *_: Any) -> standby_checks.Checked:
        await ctx.clock.sleep(1.0)
        return standby_checks.Checked(machines=("m1",), verdict=verdicts.judge(found))

    monkeypatch.setattr(standby_checks, "check_machines", check)
    return found


@pytest.fixture
def engine() -> Engine:
    return Engine()


@pytest.fixture
def ctx(tmp_path: Path, engine: Engine, tools: Tools, checks: list[Finding]) -> Iterator[Context]:
    file = tmp_path / "policy.yaml"
    file.write_text(POLICY)
    made = Context(Settings(home=tmp_path, policy_file=file), clock=FakeClock(1000.0))
    made.ledger.create()
    made.__dict__["driver"] = engine
    made.agent = lambda machine: Agent(machine.incarnation)  # type: ignore[assignment,method-assign,return-value]

    def register(name: str, incarnation: str) -> None:
        made.ledger.register(
            Register(machine=name, incarnation=incarnation, address="127.0.0.1:1", data_address="", pid=1)
        )

    engine.register = register
    use(made)
    for name in engine.units:
        register(name, "a@u1")
    made.ledger.add_job(JobSpec(name="gpt", script="t.py", machines=2, ranks_per_machine=1), "v1")
    made.ledger.claim_standbys("gpt", 2)
    made.ledger.set_job("gpt", machines=("m0", "m1"))
    with disable_run_logger():
        yield made
    use(None)


async def evicted(ctx: Context, xid: int = 119) -> Repair:
    """The playbook's own step takes m1 out of its job, because of ``xid``; the repair that it ordered."""
    found = Classification(incident_class=IncidentClass.MACHINE_FAULT, confidence=1, reasons=("x",))
    alert = Alert(
        kind=AlertKind.XID, job="gpt", machine="m1", incarnation="a@u1", at=1.0, evidence={"xid": xid}
    )
    incident = ctx.ledger.open_incident("gpt", found, 1, [alert], 1.0)
    ctx.ledger.take_job(incident.id, 1, "run 1", "run 1", 60)
    case = RecoveryContext(
        incident_id=incident.id,
        attempt=1,
        job="gpt",
        incident_class=IncidentClass.MACHINE_FAULT,
        broken_epoch=0,
        lease="run 1",
    ).within(ctx)
    await evicting.take_machines_out.fn(case, ["m1"], "x", Scope.CLUSTER)
    assert ctx.ledger.machine("m1").state is MachineState.CORDONED
    repairs = ctx.ledger.repairs(machine="m1")
    assert [each.incident_id for each in repairs] == [incident.id]
    return repairs[0]


async def run(most: int = 20) -> HeldRepair | None:
    """The flow, as it is in one run; what it took up."""
    held = await repair.take_up.fn(Repairing())
    for each in held:
        while (move := repair.next_move(each)) is not None and await repair.perform.fn(each, move):
            most -= 1
            assert most, "it does not end"
    return held[0] if held else None


def steps(found: Repair) -> list[tuple[str, str]]:
    return [(step.step.value, step.state.value) for step in found.steps]


async def test_a_reset_that_works_brings_the_machine_back(ctx: Context, tools: Tools, engine: Engine) -> None:
    """Reset with persistence mode off, EUD as the policy names it, checks for the burn-in, standby."""
    ordered = await evicted(ctx)
    assert ordered.asked is Ask.RESET_GPU
    await run()
    done = ctx.ledger.repair(ordered.id)
    assert done.state is RepairState.REPAIRED
    wanted = ["reset_gpu", "diagnose", "return", "check", "admit"]
    assert steps(done) == [(step, "worked") for step in wanted]
    assert tools.calls == [
        "nvidia-smi --query-gpu=persistence_mode --format=csv,noheader",
        "nvidia-smi --persistence-mode=0",
        "nvidia-smi --gpu-reset",
        "nvidia-smi --persistence-mode=1",
        "nvidia-smi --query-gpu=name --format=csv,noheader",
        "dcgmi diag --run eud --json",
    ]
    assert tools.persistence == "Enabled"
    assert "3 rounds of delivery checks" in done.steps[3].said
    machine = ctx.ledger.machine("m1")
    assert (machine.state, machine.incarnation, machine.cordon_reason) == (MachineState.STANDBY, "b@u2", None)
    assert engine.did == ["release m1"]


async def test_a_reset_that_fails_leads_to_a_restart(ctx: Context, tools: Tools, engine: Engine) -> None:
    """Something else holds the GPU: the tool's own words are in the record, and persistence mode is as before."""
    tools.be(smi="busy")
    ordered = await evicted(ctx)
    await run()
    done = ctx.ledger.repair(ordered.id)
    assert steps(done)[:2] == [("reset_gpu", "failed"), ("restart_machine", "worked")]
    assert "In use by another client" in done.steps[0].said
    assert "255" in done.steps[0].said
    assert done.state is RepairState.REPAIRED
    assert tools.persistence == "Enabled"
    assert engine.did == ["reboot m1", "release m1"]


async def test_a_tool_that_hangs_is_ended(
    ctx: Context, tools: Tools, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With all that it started, after the step's time."""
    tools.be(smi="hangs")
    changed = ctx.policy.repair.model_copy(update={"reset_s": 1.0})
    ctx.__dict__["policy"] = ctx.policy.model_copy(update={"repair": changed})
    ordered = await evicted(ctx)
    await run()
    done = ctx.ledger.repair(ordered.id)
    assert "not finished in time" in done.steps[0].said
    assert steps(done)[1] == ("restart_machine", "worked")


@pytest.mark.parametrize(
    ("mode", "text"), [("fails", "EUD found a failing memory row"), ("broken", "unable to establish")]
)
async def test_a_diagnosis_that_fails_is_a_ticket(
    ctx: Context, tools: Tools, engine: Engine, mode: str, text: str
) -> None:
    """The machine stays out: it was repaired, and is broken still."""
    tools.be(dcgmi=mode)
    ordered = await evicted(ctx)
    await run()
    done = ctx.ledger.repair(ordered.id)
    assert done.state is RepairState.TICKET
    assert text in done.outcome
    assert ctx.ledger.machine("m1").state is MachineState.CORDONED
    assert engine.did == []


async def test_a_failed_test_of_settings_is_no_ticket(ctx: Context, tools: Tools) -> None:
    """The repair's diagnosis goes by severity, as the machine checks do: settings prove no broken GPU."""
    tools.be(dcgmi="settings")
    ordered = await evicted(ctx)
    await run()
    done = ctx.ledger.repair(ordered.id)
    assert steps(done)[1] == ("diagnose", "skipped")
    assert "Persistence mode is disabled" in done.steps[1].said
    assert done.state is RepairState.REPAIRED


async def test_without_tools_nothing_is_claimed(ctx: Context, tools: Tools) -> None:
    """A diagnosis that is not installed is reported, and holds nothing up."""
    (tools.folder / "dcgmi").unlink()
    ordered = await evicted(ctx)
    await run()
    done = ctx.ledger.repair(ordered.id)
    assert steps(done)[1] == ("diagnose", "skipped")
    assert "not tested: dcgmi is not installed" in done.steps[1].said
    assert done.state is RepairState.REPAIRED


async def test_a_machine_that_does_not_come_back_or_pass_is_a_ticket(
    ctx: Context, engine: Engine, checks: list[Finding]
) -> None:
    """It never joins the pool; after its checks it is taken out again, in the life that failed."""
    checks.append(Finding(check="bitwise", machine="m1", ok=False, detail="rows are wrong"))
    ordered = await evicted(ctx)
    await run()
    done = ctx.ledger.repair(ordered.id)
    assert (done.state, steps(done)[-2]) == (RepairState.TICKET, ("check", "failed"))
    assert "rows are wrong" in done.outcome
    machine = ctx.ledger.machine("m1")
    assert machine.state is MachineState.CORDONED
    assert "rows are wrong" in str(machine.cordon_reason)
    assert engine.units["m1"] == ""


async def test_a_partner_with_a_bad_link_is_not_held_against_it(ctx: Context, checks: list[Finding]) -> None:
    """It fails with one and passes with another."""
    checks.append(Finding(check="all_gather", machine="m1", peer="m7", ok=False))
    checks.append(Finding(check="all_gather", machine="m1", peer="m8", ok=True))
    ordered = await evicted(ctx)
    await run()
    assert ctx.ledger.repair(ordered.id).state is RepairState.REPAIRED


async def test_an_eviction_that_names_no_repair_orders_none(ctx: Context) -> None:
    """And none is ordered where repairs are off."""
    found = Classification(incident_class=IncidentClass.JOB_CRASH, confidence=1, reasons=("x",))
    alert = Alert(kind=AlertKind.MACHINE_LOST, job="gpt", machine="m1", at=1.0)
    incident = ctx.ledger.open_incident("gpt", found, 1, [alert], 1.0)
    order_repair(ctx, "m1", incident.id, "a@u1")
    assert ctx.ledger.repairs() == []


async def test_a_machine_that_is_used_is_left_alone(ctx: Context, tools: Tools, engine: Engine) -> None:
    """A person released it: the repair ends without touching anything."""
    ordered = await evicted(ctx)
    ctx.ledger.set_machine("m1", state=MachineState.STANDBY, incarnation="b@u2")
    ctx.ledger.claim_standbys("gpt", 1)
    await run()
    assert ctx.ledger.repair(ordered.id).state is RepairState.CANCELLED
    assert tools.calls == []
    assert engine.did == []


async def test_what_came_back_and_was_evicted_again_is_not_released(ctx: Context, engine: Engine) -> None:
    """While this run slept, between its look at the record and the engine."""
    ordered = await evicted(ctx)
    engine.units["m1"] = "u9"
    done = await repair_acts.take_back(ctx, ordered, 5.0)
    assert (done.state, engine.units["m1"]) == (StepState.FAILED, "u9")
    assert "release m1" not in engine.did


async def test_a_driver_of_another_package_may_release_by_name_alone(
    ctx: Context, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was written for the release before."""
    ordered = await evicted(ctx)
    known: list[str] = []

    def release(machine: str) -> None:
        known.append(machine)
        engine.register(machine, "b@u2")

    monkeypatch.setattr(engine, "release", release)
    await run()
    assert (ctx.ledger.repair(ordered.id).state, known) == (RepairState.REPAIRED, ["m1"])


@pytest.mark.parametrize("life", ["a@u1", "c@u9"])
async def test_one_that_restarted_is_left_alone(ctx: Context, tools: Tools, life: str) -> None:
    """Cordoned for another reason in another life: it is not what was to be repaired."""
    ordered = await evicted(ctx)
    ctx.ledger.set_machine("m1", incarnation=life)
    await run()
    assert (ctx.ledger.repair(ordered.id).state is RepairState.CANCELLED) is (life == "c@u9")
    assert bool(tools.calls) is (life == "a@u1")


async def test_a_run_that_died_is_taken_over_and_its_holder_can_do_nothing(
    ctx: Context, tools: Tools
) -> None:
    """Not before its time is over; then the step is done again, and the one that woke up is refused."""
    ordered = await evicted(ctx)
    ctx.ledger.take_repair(ordered.id, "asleep")
    ctx.ledger.begin_step(ordered.id, "asleep", Step.RESET_GPU, "x", 20)
    assert await run() is None
    with pytest.raises(RefusedError, match="being repaired"):
        ctx.ledger.cancel_repairs("m1", "ann released it")
    ctx.clock.advance(60)  # type: ignore[attr-defined]
    await run()
    done = ctx.ledger.repair(ordered.id)
    assert done.state is RepairState.REPAIRED
    assert done.steps[0].times == 2
    with pytest.raises(StaleError):
        ctx.ledger.end_step(ordered.id, "asleep", StepState.WORKED, "")


async def test_a_run_killed_after_any_step_is_finished_by_the_next(
    ctx: Context, engine: Engine, tools: Tools
) -> None:
    """Each run does one step and dies: the machine comes back, and nothing that worked is done twice."""
    ordered = await evicted(ctx)
    for _ in range(8):
        for each in await repair.take_up.fn(Repairing()):
            if (move := repair.next_move(each)) is not None:
                await repair.perform.fn(each, move)
        ctx.clock.advance(60)  # type: ignore[attr-defined]
    assert ctx.ledger.repair(ordered.id).state is RepairState.REPAIRED
    assert engine.did == ["release m1"]
    assert tools.calls.count("nvidia-smi --gpu-reset") == 1


async def test_hands_get_a_ticket(ctx: Context, tools: Tools) -> None:
    """Xid 54: power is not plugged in. Sent until it arrives, always under the same key."""
    taken: list[str | None] = []
    answers = [503, 200]

    class Desk(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            taken.append(self.headers["Idempotency-Key"])
            self.send_response(answers[len(taken) - 1])
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    desk = HTTPServer(("127.0.0.1", 0), Desk)
    Thread(target=desk.serve_forever, daemon=True).start()
    try:
        address = f"http://127.0.0.1:{desk.server_port}/hook/secret"
        ctx.settings = ctx.settings.model_copy(
            update={"ticket_webhook": type(ctx.settings.ticket_webhook)(address)}
        )
        ordered = await evicted(ctx, xid=54)
        await run()
        first = ctx.ledger.repair(ordered.id)
        assert first.state is RepairState.OPEN
        assert "HTTP 503" in first.steps[-1].said
        ctx.clock.advance(60)  # type: ignore[attr-defined]
        await run()
    finally:
        desk.shutdown()
        desk.server_close()
    done = ctx.ledger.repair(ordered.id)
    assert done.state is RepairState.TICKET
    assert "power is not connected" in done.outcome
    assert taken == [f"holdfast-repair-{ordered.id}"] * 2
    assert "secret" not in repr(done)
    assert tools.calls == []


async def test_commands_of_the_site_run_through_its_shell(ctx: Context, tools: Tools, engine: Engine) -> None:
    """The restart counts when another boot was seen, and not when the command reports one."""
    (tools.folder / "reach").write_text(
        '#!/bin/sh\nshift\ncase "$*" in cat*) cat "$(dirname "$0")/boot";; *) sh -c "$*";; esac\n'
    )
    (tools.folder / "power").write_text(
        '#!/bin/sh\necho "power $*" >> "$(dirname "$0")/calls"\necho b2 > "$(dirname "$0")/boot"\n'
    )
    for name in ("reach", "power"):
        (tools.folder / name).chmod(0o755)
    (tools.folder / "boot").write_text("b1\n")
    changed = ctx.policy.repair.model_copy(
        update={"shell": "reach {machine}", "restart_command": "power cycle {machine}"}
    )
    ctx.__dict__["policy"] = ctx.policy.model_copy(update={"repair": changed})
    engine.name = "kubernetes"
    ordered = await evicted(ctx, xid=79)
    await run()
    done = ctx.ledger.repair(ordered.id)
    assert done.steps[0].said == "boot b2, before b1"
    assert tools.calls == ["power cycle m1", "dcgmi diag --run eud --json"]
    assert done.state is RepairState.REPAIRED


@pytest.mark.parametrize("node", ["gpu-17", ""])
async def test_commands_reach_the_host_where_it_has_another_name(
    ctx: Context, tools: Tools, engine: Engine, node: str
) -> None:
    """On Kubernetes m1 is a pod: a host of that name would be another one. Without a host none is reached."""
    (tools.folder / "reach").write_text(
        '#!/bin/sh\necho "$1" >> "$(dirname "$0")/reached"\nshift\nsh -c "$*"\n'
    )
    (tools.folder / "reach").chmod(0o755)
    changed = ctx.policy.repair.model_copy(update={"shell": "reach {node}"})
    ctx.__dict__["policy"] = ctx.policy.model_copy(update={"repair": changed})
    engine.name = "kubernetes"
    engine.node_of = lambda machine: node  # type: ignore[attr-defined]
    ordered = await evicted(ctx)
    await run()
    done = ctx.ledger.repair(ordered.id)
    if node:
        assert done.state is RepairState.REPAIRED
        assert set((tools.folder / "reached").read_text().split()) == {"gpu-17"}
    else:
        assert done.state is RepairState.TICKET
        assert "the host that the machine was on is not known" in done.outcome
        assert tools.calls == []


async def test_machine_that_did_not_answer_before_its_restart_has_to_be_young(
    ctx: Context, tools: Tools, engine: Engine
) -> None:
    """A restart that is only on its way: the boot that answers meanwhile is the old one, as its age shows."""
    (tools.folder / "reach").write_text(
        '#!/bin/sh\nshift\ncd "$(dirname "$0")"\n'
        'case "$*" in cat*) cat boot 2>&- || exit 1; [ ! -f next ] || mv next boot;; *) sh -c "$*";; esac\n'
    )
    (tools.folder / "power").write_text(
        '#!/bin/sh\ncd "$(dirname "$0")"\necho "b1 90000.50 1.00" > boot\necho "b2 1.25 1.00" > next\n'
    )
    for name in ("reach", "power"):
        (tools.folder / name).chmod(0o755)
    changed = ctx.policy.repair.model_copy(
        update={"shell": "reach {machine}", "restart_command": "power cycle {machine}"}
    )
    ctx.__dict__["policy"] = ctx.policy.model_copy(update={"repair": changed})
    engine.name = "kubernetes"
    ordered = await evicted(ctx, xid=79)
    await run()
    done = ctx.ledger.repair(ordered.id)
    assert done.steps[0].said == "boot b2, before it did not answer"
    assert done.state is RepairState.REPAIRED


async def test_a_site_that_set_nothing_up_gets_tickets(ctx: Context, tools: Tools, engine: Engine) -> None:
    """No command is run on the control plane in the machine's stead."""
    engine.name = "kubernetes"
    ordered = await evicted(ctx)
    await run()
    done = ctx.ledger.repair(ordered.id)
    assert done.state is RepairState.TICKET
    assert "repair.shell is empty" in done.outcome
    assert tools.calls == []


def test_every_step_has_an_act_and_a_bound(ctx: Context) -> None:
    """A new one is not forgotten."""
    assert set(repair_acts.ACTS) | {Step.ADMIT, Step.TICKET} == set(Step)
    assert all(ctx.policy.repair.at_most_s(step) > 0 for step in Step)

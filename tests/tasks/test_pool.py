"""The schedule that sizes the standby pool: by group, through the driver, safe to repeat."""

from __future__ import annotations

import asyncio
import base64
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prefect.logging import disable_run_logger

from holdfast.clock import FakeClock
from holdfast.drivers.base import Supplied
from holdfast.errors import ReplacedUnitError, SettingsError, UnavailableError
from holdfast.models.agent import Register
from holdfast.models.alert import Alert, AlertKind, Classification, Finding, IncidentClass
from holdfast.models.job import JobSpec, JobState
from holdfast.models.machine import MachineState, Scope
from holdfast.operations import provision, swap
from holdfast.operations.context import Context
from holdfast.policies.diagnose import verdicts
from holdfast.settings import Settings
from holdfast.tasks import pool, pool_report, standby, standby_checks
from holdfast.tasks.context import use
from holdfast.tasks.pool import Sizing
from holdfast.tasks.recovery_context import RecoveryContext

DAY_S = 86_400.0


class FakeDriver:
    """Counts the machines asked for; they register when the test calls."""

    name = "fake"

    def __init__(self) -> None:
        self.asked: list[tuple[int, str]] = []
        self.retired: list[str] = []
        self.dead: list[str] = []
        self.error: Exception | None = None

    def provision(self, n: int, group: str = "") -> list[str]:
        if self.error:
            raise self.error
        self.asked.append((n, group))
        return [f"{group or 'm'}-new-{len(self.asked)}-{i}" for i in range(n)]

    def retire(self, machine: str, incarnation: str = "") -> None:
        if self.error:
            raise self.error
        self.retired.append(machine)

    def machines(self) -> list[Supplied]:
        return [Supplied(name=name, alive=False) for name in self.dead]

    def evict(self, machine: str, scope: Scope, reason: str, incarnation: str = "") -> None:
        raise AssertionError("not asked for")

    def release(self, machine: str, incarnation: str = "") -> None:
        raise AssertionError("not asked for")


@pytest.fixture
def driver() -> FakeDriver:
    return FakeDriver()


@pytest.fixture
def ctx(tmp_path: Path, driver: FakeDriver) -> Iterator[Context]:
    yield from site(tmp_path, driver, "spare_pool: {minimum: 1}\n")


def site(tmp_path: Path, driver: FakeDriver, policy: str) -> Iterator[Context]:
    path = tmp_path / "policy.yaml"
    path.write_text(policy)
    clock = FakeClock(100 * DAY_S)
    ctx = Context(Settings(home=tmp_path, policy_file=path), clock=clock)
    ctx.ledger.create()
    ctx.__dict__["driver"] = driver
    use(ctx)
    with disable_run_logger():
        yield ctx
    use(None)


def add(ctx: Context, *names: str) -> None:
    for name in names:
        ctx.ledger.register(
            Register(machine=name, incarnation="i1", address="a:1", data_address="a:2", pid=1)
        )


def run_job(ctx: Context, *names: str, days: float = 10.0, evicted: tuple[str, ...] = ()) -> None:
    """A job on ``names`` for ``days``, of which ``evicted`` failed."""
    ledger = ctx.ledger
    add(ctx, *names)
    ledger.add_job(JobSpec(name="gpt", script="t.py", machines=len(names), ranks_per_machine=1), "v1")
    ledger.claim_standbys("gpt", len(names), [m.name for m in ledger.machines() if m.name not in names])
    ledger.open_epoch("gpt", 1, 0, "v1", names, "test", at=ctx.clock.now() - days * DAY_S)
    for name in evicted:
        found = Classification(incident_class=IncidentClass.MACHINE_FAULT, confidence=1, reasons=("x",))
        alert = Alert(kind=AlertKind.GPU_LOST, job="gpt", machine=name, at=1.0)
        incident = ledger.open_incident("gpt", found, 1, [alert], 1.0)
        ledger.begin(incident.id, 1, f"evict:{name}", "evict", {})
        ledger.finish(incident.id, f"evict:{name}", {})


async def sized(sizing: Sizing | None = None) -> tuple[pool.Estimate, str]:
    found = await pool.estimate.fn(sizing or Sizing())
    return found, await pool.resize.fn(found)


async def test_a_shortfall_is_provisioned_once(ctx: Context, driver: FakeDriver) -> None:
    """Machines that are provisioned already count; run again, nothing more is asked for."""
    run_job(ctx, "m0", "m1")
    found, did = await sized()
    assert found.target == ctx.ledger.pool().target == 1
    assert driver.asked == [(1, "")]
    assert "provisioned m-new-1-0" in did
    await sized()
    assert len(driver.asked) == 1


async def test_a_machine_that_died_before_it_registered_is_replaced(ctx: Context, driver: FakeDriver) -> None:
    """It is given back, and asked for again; one that registered, or that the engine does not list, is waited for."""
    ctx.ledger.set_pool(3, "test")
    assert len(await provision.provision_shortfall(ctx)) == 3
    add(ctx, "m-new-1-1")
    ctx.ledger.set_machine("m-new-1-1", state=MachineState.PROVISIONING)
    driver.dead = ["m-new-1-0", "m-new-1-1"]
    assert await provision.provision_shortfall(ctx) == ["m-new-2-0"]
    assert driver.retired == ["m-new-1-0"]
    coming = [machine.name for machine in ctx.ledger.machines(state=MachineState.PROVISIONING)]
    assert coming == ["m-new-1-1", "m-new-1-2", "m-new-2-0"]
    driver.dead = []
    assert await provision.provision_shortfall(ctx) == []


async def test_a_machine_that_got_the_name_of_a_dead_one_stays(
    ctx: Context, driver: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This run may sleep while another one gives the machine back, and the engine gives its name again."""
    ctx.ledger.set_pool(1, "test")
    assert await provision.provision_shortfall(ctx) == ["m-new-1-0"]

    def slept(machine: str, _incarnation: str = "") -> None:
        ctx.ledger.remove_machine(machine)
        add(ctx, machine)

    monkeypatch.setattr(driver, "retire", slept)
    driver.dead = ["m-new-1-0"]
    assert await provision.provision_shortfall(ctx) == []
    assert ctx.ledger.machine("m-new-1-0").state is MachineState.STANDBY


async def test_a_job_that_waits_does_not_wait_for_a_dead_machine(ctx: Context, driver: FakeDriver) -> None:
    """Another one is asked for at once; while that is on its way, no third one is."""
    await provision.provision_for_now(ctx, "")
    await provision.provision_for_now(ctx, "")
    assert driver.asked == [(1, "")]
    driver.dead = ["m-new-1-0"]
    await provision.provision_for_now(ctx, "")
    await provision.provision_for_now(ctx, "")
    assert driver.asked == [(1, ""), (1, "")]


@pytest.mark.parametrize(("standbys", "asked"), [(0, [(3, "")]), (1, [(2, "")]), (5, [(1, "")])])
async def test_an_elastic_job_has_a_machine_asked_for_in_the_place_of_each_that_it_lost(
    ctx: Context, driver: FakeDriver, standbys: int, asked: list[tuple[int, str]]
) -> None:
    """Once, however many of its recoveries ask; a standby is taken by itself. One at least, for each request."""
    run_job(ctx, "m0")
    spec = ctx.ledger.job("gpt").spec
    sizes = {"machines": {"min": 1, "want": 4, "max": 4}}
    smaller = JobSpec.model_validate(spec.model_dump(exclude={"elastic"}) | sizes).resized(1)
    ctx.ledger.set_job("gpt", spec=smaller, machines=["m0"])
    add(ctx, *(f"s{number}" for number in range(standbys)))
    for _ in range(3):
        await provision.provision_for_now(ctx, "")
    assert driver.asked == asked


async def test_a_surplus_is_retired_newest_first(ctx: Context, driver: FakeDriver) -> None:
    """A machine that a job claimed meanwhile stays; one that was left half retired is finished."""
    run_job(ctx, "m0", "m1")
    add(ctx, "s0")
    ctx.clock.advance(10)  # type: ignore[attr-defined]
    add(ctx, "s1", "s2")
    ctx.ledger.withdraw("s2")
    _, did = await sized()
    assert driver.retired == ["s2", "s1"]
    assert [m.name for m in ctx.ledger.machines(state=MachineState.STANDBY)] == ["s0"]
    assert "retired s2, s1" in did
    assert not ctx.ledger.withdraw("m0")


async def test_a_driver_of_another_package_may_know_machines_by_name_alone(
    ctx: Context, driver: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was written for the release before: its machines are given back all the same."""
    run_job(ctx, "m0", "m1")
    add(ctx, "s0", "s1")
    known: list[str] = []
    monkeypatch.setattr(driver, "retire", known.append)
    _, did = await sized()
    assert known == ["s0"]
    assert "retired s0" in did


async def test_a_machine_that_cannot_be_given_back_keeps_no_pool_empty(
    ctx: Context, driver: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It drains, and is tried again by the next run; what the pool lacks is provisioned."""

    def fails(_machine: str, _incarnation: str = "") -> None:
        raise UnavailableError("the engine does not answer")

    run_job(ctx, "m0", "m1")
    add(ctx, "s0")
    ctx.ledger.withdraw("s0")
    with monkeypatch.context() as patched:
        patched.setattr(driver, "retire", fails)
        _, did = await sized()
    assert driver.asked == [(1, "")]
    assert "s0" not in did
    assert ctx.ledger.machine("s0").state is MachineState.DRAINING
    _, did = await sized()
    assert "retired s0" in did


async def test_a_run_that_slept_forgets_no_machine_that_came_back(
    ctx: Context, driver: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another run retired it meanwhile, and the engine gave its name to a machine that trains by now."""

    def wakes(name: str, incarnation: str = "") -> None:
        assert incarnation == "i1"
        ctx.ledger.remove_machine(name)
        ctx.ledger.register(
            Register(machine=name, incarnation="i2@b", address="a:1", data_address="a:2", pid=1)
        )
        ctx.ledger.claim_standbys("gpt", 1)
        raise ReplacedUnitError(f"machine {name} was restarted")

    run_job(ctx, "m0", "m1")
    add(ctx, "s0")
    ctx.ledger.withdraw("s0")
    monkeypatch.setattr(driver, "retire", wakes)
    _, did = await sized()
    assert "s0" not in did
    assert (ctx.ledger.machine("s0").state, ctx.ledger.machine("s0").job) == (MachineState.ACTIVE, "gpt")


async def test_each_group_has_its_own_rate_and_size(tmp_path: Path, driver: FakeDriver) -> None:
    """Failures of one kind of machine do not grow the pool of another; the driver is asked by group."""
    text = "spare_pool:\n  minimum: 0\n  groups: {h: {machines: 'h-*'}, a: {machines: 'a-*', minimum: 1}}\n"
    for ctx in site(tmp_path, driver, text):
        names = [f"{kind}-{n}" for kind in "ha" for n in range(20)]
        run_job(ctx, *names, days=3, evicted=("h-1", "h-2", "h-3", "h-4", "h-5", "h-6"))
        found, _ = await sized()
        h, a = found.plans
        assert (h.group, h.machines, h.failures, round(h.machine_days)) == ("h", 20, 6, 60)
        assert (a.group, a.failures, a.target) == ("a", 0, 1)
        assert h.rate > 5 * a.rate
        assert h.target > a.target
        assert sorted(driver.asked, key=lambda ask: ask[1]) == [(1, "a"), (h.target, "h")]
        assert ctx.ledger.pool().groups == {"h": h.target, "a": 1}
        assert swap.excluded(ctx, "a-3") == []
        # A used standby of one group is replaced by one of the same.
        add(ctx, *(m.name for m in ctx.ledger.machines(state=MachineState.PROVISIONING)))
        others = swap.excluded(ctx, "a-3")
        assert [name[0] for name in others] == ["h"] * h.target
        assert ctx.ledger.claim_standbys("gpt", 1, others)[0].name[0] == "a"
        assert len(await provision.provision_shortfall(ctx)) == 1
        assert driver.asked[-1] == (1, "a")


async def test_parameters_of_the_flow_win(ctx: Context) -> None:
    """A person may try other rules; impossible ones are refused."""
    run_job(ctx, "m0", "m1")
    found = await pool.estimate.fn(Sizing(minimum=3, replenish_h=48))
    assert found.target == 3
    assert found.plans[0].replenish_h == 48
    with pytest.raises(SettingsError, match="minimum = 70, maximum = 64"):
        await pool.estimate.fn(Sizing(minimum=70))


async def test_replenishing_never_fails_a_recovery(ctx: Context, driver: FakeDriver) -> None:
    """The engine is out of machines: the incident is recovered all the same."""
    run_job(ctx, "m0", evicted=("m0",))
    driver.error = UnavailableError("no quota")
    incident = ctx.ledger.incidents()[0]
    case = RecoveryContext(
        incident_id=incident.id,
        attempt=1,
        job="gpt",
        incident_class=incident.incident_class,
        broken_epoch=1,
    ).within(ctx)
    assert await standby.replenish.fn(case) == []
    (action,) = [row for row in ctx.ledger.actions(incident.id) if row.kind == "replenish"]
    assert (action.state, action.result["error"]) == ("done", "no quota")


async def test_a_standby_that_rots_is_replaced(
    ctx: Context, driver: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It leaves the pool, and a machine is asked for; an engine without machines does not undo the finding."""

    async def take_out(ctx: Context, name: str, reason: str, scope: Scope, incarnation: str) -> None:
        assert incarnation == f"life-of-{name}"
        ctx.ledger.set_machine(name, state=MachineState.CORDONED, cordon_reason=reason, cordon_scope=scope)

    monkeypatch.setattr(standby_checks, "take_out", take_out)
    add(ctx, "s0", "s1", "s2")
    ctx.ledger.set_pool(3, "test")

    def failing(name: str) -> standby_checks.Checked:
        bad = Finding(check="matmul", machine=name, ok=False, sure=True, detail="wrong product")
        return standby_checks.Checked(
            machines=(name,), verdict=verdicts.judge([bad]), incarnations={name: f"life-of-{name}"}
        )

    assert "took out s0; provisioned m-new-1-0" in await standby_checks.remove_unfit.fn(failing("s0"))
    driver.error = UnavailableError("no quota")
    assert "took out s1; not replaced: no quota" in await standby_checks.remove_unfit.fn(failing("s1"))
    assert [m.name for m in ctx.ledger.machines(state=MachineState.STANDBY)] == ["s2"]


async def test_eviction_that_the_engine_does_not_take_holds_no_other_up(
    ctx: Context, driver: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It drains meanwhile; the next run takes it out, whichever of the two schedules that is."""
    stubborn = {"s0"}

    def evict(machine: str, scope: Scope, reason: str, incarnation: str = "") -> None:
        if machine in stubborn:
            raise UnavailableError(f"machine {machine}: its processes may still run")

    monkeypatch.setattr(driver, "evict", evict)
    add(ctx, "s0", "s1", "s2")
    bad = [
        Finding(check="matmul", machine=name, ok=False, sure=True, detail="wrong") for name in ("s0", "s1")
    ]
    checked = standby_checks.Checked(machines=("s0", "s1"), verdict=verdicts.judge(bad))
    did = await standby_checks.remove_unfit.fn(checked)
    assert "took out s1" in did
    states = {each.name: each.state for each in ctx.ledger.machines() if each.name in ("s0", "s1", "s2")}
    assert states == {
        "s0": MachineState.DRAINING,
        "s1": MachineState.CORDONED,
        "s2": MachineState.STANDBY,
    }
    nothing = standby_checks.Checked(machines=(), verdict=verdicts.judge([]))
    assert "took out" not in await standby_checks.admit.fn(nothing)
    stubborn.clear()
    assert "took out s0" in await standby_checks.admit.fn(nothing)
    machine = ctx.ledger.machine("s0")
    assert machine.state is MachineState.CORDONED
    assert machine.cordon_reason is not None
    assert "wrong" in machine.cordon_reason


@pytest.mark.parametrize(("state", "out"), [(JobState.STOPPED, True), (JobState.RUNNING, False)])
async def test_eviction_that_failed_at_the_end_of_a_job_is_ended_too(
    ctx: Context, driver: FakeDriver, monkeypatch: pytest.MonkeyPatch, state: JobState, out: bool
) -> None:
    """That of a job that runs is its playbook's."""
    monkeypatch.setattr(driver, "evict", lambda *_: None)
    run_job(ctx, "m0", "m1")
    ctx.ledger.set_job("gpt", state=state)
    ctx.ledger.drain("m1", "i1", Scope.CLUSTER, "not fit for the standby pool", "gpt")
    did = await standby_checks.admit.fn(standby_checks.Checked(machines=(), verdict=verdicts.judge([])))
    assert ("took out m1" in did) is out
    now = ctx.ledger.machine("m1").state
    assert now is (MachineState.CORDONED if out else MachineState.DRAINING)


async def test_the_report_has_size_reasoning_and_cost_with_a_plot(ctx: Context) -> None:
    """The same plan gives the same bytes; the plot is an SVG that Prefect shows."""
    run_job(ctx, *(f"m{n}" for n in range(128)), evicted=("m1",))
    found = await pool.estimate.fn(Sizing())
    text = pool_report.markdown(found.plans, found.history_days, "did <this>")
    assert f"# Standby pool: {found.target}" in text
    assert "1 failure in 1280.0 machine-days" in text
    assert "a whole switch (32 machines" in text
    assert "did \\<this\\>" in text
    assert "Binomial" in text
    encoded: Any = re.search(r"data:image/svg\+xml;base64,([A-Za-z0-9+/=]+)\)", text)
    svg = base64.b64decode(encoded[1])
    assert svg.startswith(b"<?xml")
    assert b"</svg>" in svg
    assert text == pool_report.markdown(found.plans, found.history_days, "did <this>")


async def test_runs_that_find_the_same_shortfall_at_once_ask_for_it_once(
    ctx: Context, driver: FakeDriver
) -> None:
    """Ten recoveries end at the same moment."""
    ctx.ledger.set_pool(4, "test")
    made = await asyncio.gather(*(provision.provision_shortfall(ctx) for _ in range(10)))
    assert driver.asked == [(4, "")]
    assert sum(len(names) for names in made) == 4


async def test_standbys_stay_for_machines_that_are_on_their_way(ctx: Context, driver: FakeDriver) -> None:
    """A machine that has not come yet may never come: a pool that shrinks keeps its target of standbys."""
    run_job(ctx, "m0", "m1")
    add(ctx, "s0")
    ctx.ledger.add_provisioning(["p0", "p1"])
    found, did = await sized()
    assert (found.target, driver.retired) == (1, [])
    assert did.endswith("retired none")
    add(ctx, "p0", "p1")
    await sized()
    assert len(driver.retired) == 2


async def test_parameters_of_the_flow_win_over_a_group_too(tmp_path: Path, driver: FakeDriver) -> None:
    """They hold for each group, as they say; one that contradicts what a group keeps is refused by the group's name."""
    text = "spare_pool:\n  minimum: 0\n  groups: {h: {machines: 'h-*', minimum: 1, maximum: 3}}\n"
    for ctx in site(tmp_path, driver, text):
        run_job(ctx, "h-0", "h-1")
        assert [plan.target for plan in (await pool.estimate.fn(Sizing())).plans] == [1]
        assert [plan.target for plan in (await pool.estimate.fn(Sizing(minimum=2))).plans] == [2]
        assert [plan.target for plan in (await pool.estimate.fn(Sizing(minimum=5, maximum=5))).plans] == [5]
        assert [plan.target for plan in (await pool.estimate.fn(Sizing(minimum=0, maximum=0))).plans] == [0]
        with pytest.raises(SettingsError, match="group 'h': minimum = 4, maximum = 3"):
            await pool.estimate.fn(Sizing(minimum=4))
        with pytest.raises(SettingsError, match="group 'h': minimum = 1, maximum = 0"):
            await pool.estimate.fn(Sizing(maximum=0))


async def test_a_group_that_wants_fewer_than_the_pool_is_sized(tmp_path: Path, driver: FakeDriver) -> None:
    """Its own maximum lies below the minimum of all: the flow failed at it every day."""
    groups = "{h: {machines: 'h-*', maximum: 1}, a: {machines: 'a-*', minimum: 6}}"
    text = f"spare_pool: {{minimum: 2, maximum: 4, groups: {groups}}}\n"
    for ctx in site(tmp_path, driver, text):
        run_job(ctx, "h-0", "a-1")
        found, _ = await sized()
        assert [(plan.group, plan.target) for plan in found.plans] == [("h", 1), ("a", 6)]


async def test_jobs_that_lack_machines_at_once_ask_for_one_each(ctx: Context, driver: FakeDriver) -> None:
    """Each asked for one of its own, or waited for the single one that was on its way for another."""
    add(ctx, "m0", "m1", "m2")
    for name, machines in (("a", 1), ("b", 2)):
        ctx.ledger.add_job(JobSpec(name=name, script="t.py", machines=machines, ranks_per_machine=1), "v1")
        got = ctx.ledger.claim_standbys(name, machines)
        ctx.ledger.set_job(name, machines=tuple(machine.name for machine in got))
    for lost in ("m0", "m1", "m2"):
        ctx.ledger.set_machine(lost, state=MachineState.CORDONED)
    await asyncio.gather(*(provision.provision_for_now(ctx, "") for _ in range(10)))
    assert driver.asked == [(3, "")]
    ctx.ledger.set_job("b", state=JobState.STOPPED)
    driver.dead = ["m-new-1-0", "m-new-1-1", "m-new-1-2"]
    await provision.provision_for_now(ctx, "")
    assert driver.asked == [(3, ""), (1, "")]

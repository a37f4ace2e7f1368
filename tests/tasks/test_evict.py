"""An eviction whose process sleeps: whatever was decided, and whenever it wakes up, only what was meant is evicted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest
from prefect.logging import disable_run_logger

from holdfast.clock import FakeClock
from holdfast.deployments.gateway.intake.outcome import What
from holdfast.drivers.base import Supplied, require_unit
from holdfast.errors import SilentError, StaleError, UndyingError
from holdfast.models.agent import Register
from holdfast.models.alert import Alert, AlertKind, Classification, Finding, IncidentClass
from holdfast.models.job import JobSpec, JobState
from holdfast.models.machine import Machine, MachineState, Scope
from holdfast.operations import fitness, launch, stop, swap
from holdfast.operations.context import Context
from holdfast.operations.fence import Fenced
from holdfast.settings import Settings
from holdfast.tasks import evict as evicting
from holdfast.tasks import standby
from holdfast.tasks.context import use
from holdfast.tasks.recovery_context import RecoveryContext

SLEEP = ("before the ranks are fenced", "before the driver acts", "before the driver is asked", "afterwards")


class Engine:
    """Runs one unit per machine, as every driver does; ``asleep`` happens at the point of that name."""

    name = "engine"

    def __init__(self) -> None:
        self.units = {"m0": "u1", "m1": "u1"}
        self.evicted: list[tuple[str, str]] = []
        self.asleep: dict[str, Callable[[], None]] = {}

    def at(self, point: str) -> None:
        if what := self.asleep.pop(point, None):
            what()

    def machines(self) -> list[Supplied]:
        self.at("before the driver is asked")
        return [Supplied(name=name, alive=bool(unit)) for name, unit in self.units.items()]

    def evict(self, machine: str, scope: Scope, reason: str, incarnation: str = "") -> None:
        self.at("before the driver acts")
        require_unit(machine, incarnation, self.units[machine])
        self.evicted.append((machine, self.units[machine]))
        self.units[machine] = ""
        self.at("afterwards")


@pytest.fixture
def engine() -> Engine:
    return Engine()


@pytest.fixture
def ctx(tmp_path: Path, engine: Engine) -> Iterator[Context]:
    ctx = Context(Settings(home=tmp_path), clock=FakeClock(1000.0))
    ctx.ledger.create()
    ctx.__dict__["driver"] = engine
    use(ctx)
    for name in engine.units:
        register(ctx, name, "a@u1")
    ctx.ledger.add_job(JobSpec(name="gpt", script="t.py", machines=2, ranks_per_machine=1), "v1")
    ctx.ledger.claim_standbys("gpt", 2)
    ctx.ledger.set_job("gpt", machines=("m0", "m1"))
    with disable_run_logger():
        yield ctx
    use(None)


def register(ctx: Context, name: str, incarnation: str) -> None:
    ctx.ledger.register(
        Register(machine=name, incarnation=incarnation, address="127.0.0.1:1", data_address="", pid=1)
    )


def case_of(ctx: Context, attempt: int = 1, holder: str = "run 1") -> RecoveryContext:
    incidents = ctx.ledger.incidents("gpt")
    if incidents:
        incident = incidents[0]
    else:
        found = Classification(incident_class=IncidentClass.MACHINE_FAULT, confidence=1, reasons=("x",))
        alert = Alert(kind=AlertKind.GPU_LOST, job="gpt", machine="m1", at=1.0)
        incident = ctx.ledger.open_incident("gpt", found, 1, [alert], 1.0)
    ctx.ledger.take_job(incident.id, attempt, holder, holder, 15.0)
    return RecoveryContext(
        incident_id=incident.id,
        attempt=attempt,
        job="gpt",
        incident_class=incident.incident_class,
        broken_epoch=1,
        lease=holder,
    ).within(ctx)


def an_hour_passes(ctx: Context, engine: Engine) -> None:
    """Another attempt evicts the machine, people repair and release it, and the job gets it back."""
    ledger = ctx.ledger
    incident = ledger.incidents("gpt")[0]
    ledger.next_attempt(incident.id, 1)
    case_of(ctx, 2, "run 2")
    engine.units["m1"] = "u2"
    ledger.set_machine("m1", state=MachineState.PROVISIONING, job=None)
    register(ctx, "m1", "b@u2")
    ledger.claim_standbys("gpt", 1)


@pytest.mark.parametrize("point", SLEEP)
async def test_an_attempt_that_slept_for_an_hour_evicts_nothing(
    ctx: Context, engine: Engine, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    """The machine is in service again, repaired, as another unit; only what was done before the sleep was done."""
    engine.asleep[point] = lambda: an_hour_passes(ctx, engine)

    async def fence(*_: object, **__: object) -> Fenced:
        engine.at("before the ranks are fenced")
        return Fenced({})

    monkeypatch.setattr(evicting, "fence", fence)
    case = case_of(ctx)
    with pytest.raises(StaleError):
        await evicting.take_machines_out.fn(case, ("m1",), "GPU lost", Scope.CLUSTER)
    assert ("m1", "u2") not in engine.evicted
    assert engine.units["m1"] == "u2"
    machine = ctx.ledger.machine("m1")
    assert (machine.state, machine.job, machine.incarnation) == (MachineState.ACTIVE, "gpt", "b@u2")
    assert engine.asleep == {}


async def test_a_machine_that_its_engine_replaced_already_is_let_go(
    ctx: Context, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its pod was preempted and made again elsewhere: the accused one is gone, the new one is a standby."""

    async def fence(*_: object, **__: object) -> Fenced:
        engine.units["m1"] = "u2"
        register(ctx, "m1", "b@u2")
        return Fenced({})

    monkeypatch.setattr(evicting, "fence", fence)
    case = case_of(ctx)
    await evicting.take_machines_out.fn(case, ("m1",), "GPU lost", Scope.CLUSTER)
    assert engine.evicted == []
    machine = ctx.ledger.machine("m1")
    assert (machine.state, machine.job) == (MachineState.STANDBY, None)
    (action,) = case.done("evict")
    assert "was restarted" in (action.result or {})["reason"]


async def test_an_agent_that_restarts_is_no_other_machine(
    ctx: Context, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its unit is the same: what accuses the machine still does."""

    async def fence(*_: object, **__: object) -> Fenced:
        register(ctx, "m1", "b@u1")
        return Fenced({})

    monkeypatch.setattr(evicting, "fence", fence)
    await evicting.take_machines_out.fn(case_of(ctx), ("m1",), "GPU lost", Scope.CLUSTER)
    assert engine.evicted == [("m1", "u1")]
    assert ctx.ledger.machine("m1").state is MachineState.CORDONED


@pytest.mark.parametrize(("granted_s", "waited_s"), [(0.0, 6.0), (20.0, 21.0)])
async def test_a_machine_without_contact_is_counted_as_gone_when_its_own_lease_is_over(
    ctx: Context, monkeypatch: pytest.MonkeyPatch, granted_s: float, waited_s: float
) -> None:
    """It may have been granted a longer one than others; its ranks run until then."""

    async def fence(*_: object, **__: object) -> Fenced:
        return Fenced({}, lost=("m1",), silent=("m1",))

    monkeypatch.setattr(evicting, "fence", fence)
    assert ctx.ledger.set_lease("m1", "a@u1", granted_s)
    begun = ctx.clock.now()
    await evicting.take_machines_out.fn(case_of(ctx), ("m1",), "GPU lost", Scope.CLUSTER)
    assert ctx.clock.now() - begun == waited_s


async def test_machines_of_a_job_that_goes_on_are_not_freed(ctx: Context, engine: Engine) -> None:
    """The process that found it ended may have slept since."""
    with pytest.raises(StaleError, match="job gpt is paused"):
        await stop.free_machines(ctx, "gpt")
    assert engine.evicted == []


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (JobState.DONE, JobState.DONE),
        (JobState.RUNNING, JobState.STOPPED),
        (JobState.FAILED, JobState.STOPPED),
    ],
)
async def test_a_job_that_is_done_stays_done_when_it_is_stopped(
    ctx: Context, monkeypatch: pytest.MonkeyPatch, before: JobState, after: JobState
) -> None:
    """Or `holdfast wait` would report that a person stopped it, and `resume` would start it again."""
    asked: list[str] = []

    async def fence(*_: object, **__: object) -> Fenced:
        asked.append("fence")
        return Fenced({})

    async def nothing(*_: object) -> None:
        asked.append("more")

    monkeypatch.setattr(stop, "fence", fence)
    monkeypatch.setattr(stop, "persist", nothing)
    monkeypatch.setattr(stop, "free_machines", nothing)
    monkeypatch.setattr(type(ctx.ledger), "close_epoch", lambda *_: None)
    ctx.ledger.set_job("gpt", state=before, done_at=5.0)
    await stop.stop(ctx, "gpt")
    found = ctx.ledger.job("gpt")
    assert found.state is after
    assert found.done_at == (5.0 if before is JobState.DONE else 1000.0)
    assert asked == ["fence", "more", "more"]


async def test_a_machine_that_does_not_answer_stays_with_the_job_that_has_ended(
    ctx: Context, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its ranks may run on there: a job that got it as a standby would run beside them."""

    async def fit(*_: object) -> str:
        return ""

    async def ask(
        _ctx: Context, machines: Iterable[Machine], _command: object, **_: int
    ) -> dict[str, object]:
        return {each.name: SilentError("no answer") if each.name == "m1" else None for each in machines}

    monkeypatch.setattr(stop, "why_unfit", fit)
    monkeypatch.setattr(stop.fleet, "ask", ask)
    ctx.ledger.set_job("gpt", state=JobState.STOPPED)
    await stop.free_machines(ctx, "gpt")
    assert ctx.ledger.machine("m0").state is MachineState.STANDBY
    left = ctx.ledger.machine("m1")
    assert (left.state, left.job, engine.evicted) == (MachineState.ACTIVE, "gpt", [])


@pytest.mark.parametrize(
    ("kind", "answers", "fit"),
    [
        (AlertKind.MACHINE_LOST, True, True),
        (AlertKind.MACHINE_LOST, False, False),
        (AlertKind.GPU_LOST, True, False),
    ],
)
async def test_a_machine_that_was_lost_and_answers_again_is_fit(
    ctx: Context, monkeypatch: pytest.MonkeyPatch, kind: AlertKind, answers: bool, fit: bool
) -> None:
    """A recovery left it in the job: it is no reason to cordon it at the job's end. Other sure signs are."""

    class Agent:
        async def diagnose(self, _: object) -> list[Finding]:
            if not answers:
                raise SilentError("no answer")
            return []

    monkeypatch.setattr(Context, "agent", lambda *_: Agent())
    alert = Alert(kind=kind, job="gpt", machine="m1", at=2e9, incarnation="a@u1")
    ctx.ledger.record_alert(alert, None, What.IGNORED)
    assert (await fitness.why_unfit(ctx, ctx.ledger.machine("m1")) == "") is fit


async def test_what_was_started_of_a_job_that_was_stopped_meanwhile_is_ended(
    ctx: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stop may have fenced the epoch before, and given back the machines, before the start came to them."""
    fenced: list[tuple[str, int]] = []

    async def fence(_ctx: Context, machines: list[Machine], _job: str, epoch: int) -> Fenced:
        fenced.extend((machine.name, epoch) for machine in machines)
        return Fenced({})

    monkeypatch.setattr(launch, "fence", fence)
    machines, epoch = ctx.ledger.machines_named(["m0", "m1"]), ctx.ledger.next_epoch("gpt")
    await launch._record_running(ctx, ctx.ledger, "gpt", machines, epoch, None)
    assert (ctx.ledger.job("gpt").state, fenced) == (JobState.RUNNING, [])
    ctx.ledger.set_job("gpt", state=JobState.STOPPED, done_at=ctx.clock.now())
    with pytest.raises(StaleError, match="is stopped"):
        await launch._record_running(ctx, ctx.ledger, "gpt", machines, epoch, None)
    assert ctx.ledger.job("gpt").state is JobState.STOPPED
    assert fenced == [("m0", 1), ("m1", 1)]


@pytest.mark.parametrize("state", [JobState.STOPPED, JobState.SCALED_TO_ZERO])
async def test_a_machine_with_processes_that_do_not_die_is_no_standby(
    ctx: Context, engine: Engine, monkeypatch: pytest.MonkeyPatch, state: JobState
) -> None:
    """The job that got it could start nothing there. Once they are gone it is given back."""
    left = ["m1"]

    async def fit(*_: object) -> str:
        return ""

    async def ask(
        _ctx: Context, machines: Iterable[Machine], _command: object, **_: int
    ) -> dict[str, object]:
        return {each.name: UndyingError("state D") if each.name in left else None for each in machines}

    monkeypatch.setattr(stop, "why_unfit", fit)
    monkeypatch.setattr(stop.fleet, "ask", ask)
    machines = ctx.ledger.machines_named(["m0", "m1"])
    job = ctx.ledger.set_job("gpt", state=state, machines=())
    await stop.give_back(ctx, job, machines)
    assert ctx.ledger.machine("m0").state is MachineState.STANDBY
    assert (ctx.ledger.machine("m1").state, ctx.ledger.machine("m1").job) == (MachineState.ACTIVE, "gpt")
    left.clear()
    await stop.give_back(ctx, job, machines[1:])
    assert ctx.ledger.machine("m1").state is MachineState.STANDBY
    assert engine.evicted == []


async def test_one_machine_that_cannot_be_taken_out_holds_back_no_other(
    ctx: Context, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """m0's new pod runs while the ledger still has the former one: it is let go until it registers; m1 is evicted."""

    async def unfit(*_: object) -> str:
        return "its agent is gone"

    async def ask(*_: object, **__: int) -> dict[str, None]:
        return {}

    monkeypatch.setattr(stop, "why_unfit", unfit)
    monkeypatch.setattr(stop.fleet, "ask", ask)
    ctx.ledger.set_job("gpt", state=JobState.DONE)
    engine.units["m0"] = "u2"
    await stop.free_machines(ctx, "gpt")
    assert engine.evicted == [("m1", "u1")]
    assert ctx.ledger.machine("m0").state is MachineState.PROVISIONING
    register(ctx, "m0", "b@u2")
    assert ctx.ledger.machine("m0").state is MachineState.STANDBY
    assert ctx.ledger.machine("m1").state is MachineState.CORDONED


@pytest.mark.parametrize("accused_by", ["an alert", "stacks"])
async def test_a_verdict_about_a_former_life_of_a_machine_evicts_no_later_one(
    ctx: Context, engine: Engine, monkeypatch: pytest.MonkeyPatch, accused_by: str
) -> None:
    """The machine was restarted between the verdict and its eviction: the one that registered is another, innocent."""

    async def fence(*_: object, **__: object) -> Fenced:
        return Fenced({})

    monkeypatch.setattr(evicting, "fence", fence)
    case = case_of(ctx)
    if accused_by == "an alert":
        alert = Alert(
            kind=AlertKind.GPU_LOST, job="gpt", machine="m1", at=2.0, incarnation="a@u1", fingerprint="2"
        )
        ctx.ledger.join(case.incident_id, [alert])
    else:
        seen = {"incarnations": case.incarnations()}
        ctx.ledger.begin(case.incident_id, 1, "stacks:e1", "stacks", seen, case.lease)
    engine.units["m1"] = "u2"
    register(ctx, "m1", "b@u2")
    await evicting.take_machines_out.fn(case, ("m1",), "outlier in a hang", Scope.CLUSTER)
    assert engine.evicted == []
    assert ctx.ledger.machine("m1").state is MachineState.STANDBY


async def test_a_machine_that_was_let_go_takes_no_slot_but_its_own(ctx: Context, engine: Engine) -> None:
    """Two slots are empty: one machine is dead, the other was restarted, is innocent, and stands by again."""
    case = case_of(ctx)
    ctx.ledger.set_machine("m0", state=MachineState.CORDONED, job=None)
    register(ctx, "m1", "b@u2")
    ctx.ledger.let_go("m1", "a@u1", "gpt", case.lease)
    register(ctx, "m2", "a@u1")
    await standby._swapped_in.fn(case)
    assert ctx.ledger.job("gpt").machines == ("m2", "m1")


@pytest.mark.parametrize("fails_again", [False, True])
async def test_a_machine_that_came_back_and_fails_again_goes_again(
    ctx: Context, engine: Engine, monkeypatch: pytest.MonkeyPatch, fails_again: bool
) -> None:
    """Its engine had replaced it, and it took its own slot again; the next one of that name may fail as well."""

    async def fence(*_: object, **__: object) -> Fenced:
        return Fenced({})

    monkeypatch.setattr(evicting, "fence", fence)
    case = case_of(ctx)
    ctx.ledger.begin(case.incident_id, 1, "evict:m1", "evict", {"incarnation": "a@u1"}, case.lease)
    engine.units["m1"] = "u2"
    register(ctx, "m1", "b@u2")
    ctx.ledger.let_go("m1", "a@u1", "gpt", case.lease)
    ctx.ledger.finish(case.incident_id, "evict:m1", {})
    assert await standby._swapped_in.fn(case) == {"m1": "m1"}
    if fails_again:
        lost = Alert(kind=AlertKind.GPU_LOST, job="gpt", machine="m1", incarnation="b@u2", at=2.0)
        ctx.ledger.join(case.incident_id, [lost.model_copy(update={"fingerprint": "again"})])
    await evicting.take_machines_out.fn(case, ("m1",), "GPU lost", Scope.CLUSTER)
    assert engine.evicted == ([("m1", "u2")] if fails_again else [])
    register(ctx, "m2", "a@u1")
    assert (await standby._swapped_in.fn(case))["m1"] == ("m2" if fails_again else "m1")
    assert ctx.ledger.job("gpt").machines == ("m0", "m2" if fails_again else "m1")


async def test_an_attempt_that_slept_takes_no_standby(
    ctx: Context, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was asleep between its intent and the claim; another attempt acts on the job by then."""
    register(ctx, "m2", "a@u1")
    case = case_of(ctx)
    ctx.ledger.set_machine("m1", state=MachineState.CORDONED, job=None)

    def an_hour_later(*_: object) -> list[str]:
        ctx.ledger.next_attempt(case.incident_id, 1)
        case_of(ctx, 2, "run 2")
        return []

    monkeypatch.setattr(swap, "excluded", an_hour_later)
    with pytest.raises(StaleError, match="run 1 may not act on it any more"):
        await standby._swapped_in.fn(case)
    assert ctx.ledger.machine("m2").state is MachineState.STANDBY
    assert ctx.ledger.job("gpt").machines == ("m0", "m1")


@pytest.mark.parametrize("found_bad", [False, True])
def test_a_machine_that_restarted_and_fails_a_check_now_is_not_spared(ctx: Context, found_bad: bool) -> None:
    """Its former life was accused; the present one is as well, by what this run saw."""
    found = Classification(incident_class=IncidentClass.JOB_CRASH, confidence=1, machine="m1", reasons=("x",))
    lost = Alert(kind=AlertKind.GPU_LOST, job="gpt", machine="m1", incarnation="a@u1", at=1.0)
    incident = ctx.ledger.open_incident("gpt", found, 1, [lost], 1.0)
    case = case_of(ctx).model_copy(update={"accused": ("m1",)})
    register(ctx, "m1", "b@u2")
    intent = {"tier": "inspect", "incarnations": {"m0": "a@u1", "m1": "b@u2"}}
    finding = Finding(check="gpu_lost", machine="m1", ok=not found_bad, sure=found_bad)
    ctx.ledger.begin(incident.id, 1, "check:inspect:e1", "check", intent)
    ctx.ledger.finish(incident.id, "check:inspect:e1", {"findings": [finding.model_dump(mode="json")]})
    assert evicting.restarted_since(case) == (set() if found_bad else {"m1"})


async def test_a_machine_that_was_lost_with_the_accused_one_is_not_recorded_with_its_fault(
    ctx: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The incident's cause is true of the accused machine; the other one did not answer."""

    async def fence(*_: object, **__: object) -> Fenced:
        return Fenced({})

    async def paused() -> dict[str, object]:
        return {"unreachable": ["m0"], "silent": []}

    monkeypatch.setattr(evicting, "fence", fence)
    case = case_of(ctx)
    await case.once("pause", case.life, {}, paused)
    await evicting.take_machines_out.fn(case, ("m1", "m0"), "m1: a GPU is lost", Scope.CLUSTER)
    reasons = {name: str(ctx.ledger.machine(name).cordon_reason) for name in ("m0", "m1")}
    assert "did not answer when the ranks of its job were stopped" in reasons["m0"]
    assert "a GPU is lost" not in reasons["m0"]
    assert "a GPU is lost" in reasons["m1"]


async def test_a_person_who_wants_out_what_restarted_since_means_its_present_life(
    ctx: Context, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The alert that opened the incident names the former one, which is gone."""

    async def fence(*_: object, **__: object) -> Fenced:
        return Fenced({})

    monkeypatch.setattr(evicting, "fence", fence)
    case = case_of(ctx)
    engine.units["m1"] = "u2"
    register(ctx, "m1", "b@u2")
    asked = {"by": "ann", "class": "machine_fault", "text": "smells burnt"}
    wish = Alert(kind=AlertKind.MANUAL, job="gpt", machine="m1", incarnation="b@u2", at=2.0, evidence=asked)
    lost = Alert(kind=AlertKind.GPU_LOST, job="gpt", machine="m1", incarnation="a@u1", at=1.5)
    ctx.ledger.join(case.incident_id, [lost, wish])
    await evicting.take_machines_out.fn(case, ("m1",), "GPU lost", Scope.CLUSTER)
    assert engine.evicted == [("m1", "u2")]

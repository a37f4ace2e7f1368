"""How a playbook learns that every rank made a step, without asking a thousand machines over and over."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.clock import FakeClock
from holdfast.errors import HoldfastError, RecoveryError, SilentError, UnavailableError, UnknownError
from holdfast.models.agent import JobOnMachine, RankPhase, RankState
from holdfast.models.job import JobSpec
from holdfast.models.machine import Machine
from holdfast.operations import fleet
from holdfast.operations.context import Context
from holdfast.operations.first_steps import first_steps
from holdfast.settings import Settings
from holdfast.tasks.context import use
from tests.storage.ledger.samples import register

MACHINES = 100


@pytest.fixture
def ctx(tmp_path: Path) -> Iterator[Context]:
    """A job of a hundred machines whose first epoch has just begun."""
    ctx = Context(Settings(home=tmp_path))
    ctx.ledger.create()
    names = [f"m{number}" for number in range(MACHINES)]
    for name in names:
        register(ctx.ledger, name)
    spec = JobSpec(name="gpt", script="t.py", machines=MACHINES, ranks_per_machine=1)
    ctx.ledger.add_job(spec, "v1")
    ctx.ledger.set_job("gpt", machines=tuple(names))
    ctx.ledger.next_epoch("gpt")
    use(ctx)
    yield ctx
    use(None)


class Fleet:
    """Answers for each machine with the state from ``rank``; notes the machines asked, look by look."""

    def __init__(self, rank: Callable[[str, int], dict[str, Any]]) -> None:
        self.looks: list[list[str]] = []
        self._rank = rank

    async def ask(
        self, _ctx: Context, machines: Iterable[Machine], _command: object
    ) -> dict[str, JobOnMachine | HoldfastError]:
        asked = [machine.name for machine in machines]
        self.looks.append(asked)
        return {name: self._state(name) for name in asked}

    def _state(self, name: str) -> JobOnMachine:
        rank = RankState(**{"rank": int(name[1:]), "pid": 1} | self._rank(name, len(self.looks)))
        return JobOnMachine(job="gpt", epoch=1, ranks=(rank,))


async def test_a_few_are_asked_until_one_made_a_step(ctx: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then all that are left, and those only."""
    late = "m99"

    def rank(name: str, look: int) -> dict[str, Any]:
        stepped = look >= 3 and (name != late or look >= 5)
        return {"phase": RankPhase.RUNNING, "steps_done": int(stepped)}

    machines = Fleet(rank)
    monkeypatch.setattr(fleet, "ask", machines.ask)
    await first_steps(ctx, "gpt", 1, 60.0)
    assert [len(asked) for asked in machines.looks] == [32, 32, 32, 100, 1]
    assert machines.looks[-1] == [late]


async def test_a_wall_clock_that_is_set_ends_no_start(ctx: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two hours forward: ranks that are about to make their step would be stopped for it, and started again."""
    clock = FakeClock()
    monkeypatch.setattr(ctx, "clock", clock)

    def rank(_name: str, look: int) -> dict[str, Any]:
        if look in (2, 3):
            clock.set(clock.now() + (7200.0 if look == 2 else -14_400.0))
        return {"phase": RankPhase.RUNNING, "steps_done": int(look >= 5)}

    monkeypatch.setattr(fleet, "ask", Fleet(rank).ask)
    await first_steps(ctx, "gpt", 1, 60.0)


async def test_one_that_fails_among_those_that_are_not_asked_is_found(
    ctx: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All are asked now and then."""

    def rank(name: str, _look: int) -> dict[str, Any]:
        failed = {"phase": RankPhase.EXITED, "exit_code": 3, "steps_done": 0}
        return failed if name == "m77" else {"phase": RankPhase.RUNNING, "steps_done": 0}

    machines = Fleet(rank)
    monkeypatch.setattr(fleet, "ask", machines.ask)
    with pytest.raises(RecoveryError, match="rank 77 ended with status 3"):
        await first_steps(ctx, "gpt", 1, 600.0)
    assert len(machines.looks[-1]) == MACHINES


@pytest.fixture
def slow(tmp_path: Path) -> Iterator[tuple[Context, FakeClock]]:
    """A job of one machine in its second epoch, at a clock of the test's own."""
    clock = FakeClock()
    ctx = Context(Settings(home=tmp_path), clock=clock)
    ctx.ledger.create()
    register(ctx.ledger, "m0")
    ctx.ledger.add_job(JobSpec(name="gpt", script="t.py", machines=1, ranks_per_machine=1), "v1")
    ctx.ledger.set_job("gpt", machines=("m0",))
    for _ in range(2):
        ctx.ledger.open_epoch("gpt", ctx.ledger.next_epoch("gpt"), 0, "v1", ["m0"], "test", at=clock.now())
    use(ctx)
    yield ctx, clock
    use(None)


def rank_of(clock: FakeClock, per_look_s: float, **grows: float) -> Callable[[str, int], dict[str, Any]]:
    """Its first step comes after 900 s; each look takes ``per_look_s``. ``grows``: what grows, by second."""
    began = clock.now()

    def rank(_name: str, _look: int) -> dict[str, Any]:
        clock.advance(per_look_s)
        passed = clock.now() - began
        grown = {name: type(value)(value * passed) for name, value in grows.items()}
        return {"phase": RankPhase.RUNNING, "steps_done": int(passed >= 900), **grown}

    return rank


async def test_a_start_that_takes_as_long_as_one_before_is_waited_for(
    slow: tuple[Context, FakeClock], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With signs of life meanwhile. Without that start it is given up after the policy's time."""
    ctx, clock = slow
    monkeypatch.setattr(fleet, "ask", Fleet(rank_of(clock, 40.0)).ask)
    with pytest.raises(RecoveryError, match="no step from every rank within 300 s"):
        await first_steps(ctx, "gpt", 2, 300.0)
    (first, _) = ctx.ledger.epochs("gpt")
    ctx.ledger.mark("gpt", 1, 1, first.opened_at + 1200.0)
    monkeypatch.setattr(fleet, "ask", Fleet(rank_of(clock, 40.0)).ask)
    signs: list[float] = []
    await first_steps(ctx, "gpt", 2, 300.0, sign=lambda: signs.append(clock.now()))
    assert len(signs) >= 5


@pytest.mark.parametrize("grows", [{"children_cpu_s": 0.9}, {"io_bytes": 1_000_000}])
async def test_ranks_that_prepare_their_first_step_are_waited_for(
    slow: tuple[Context, FakeClock], monkeypatch: pytest.MonkeyPatch, grows: dict[str, float]
) -> None:
    """They compile, tokenise or read."""
    ctx, clock = slow
    monkeypatch.setattr(fleet, "ask", Fleet(rank_of(clock, 20.0, **grows)).ask)
    await first_steps(ctx, "gpt", 2, 300.0)


async def test_the_ranks_own_processor_time_is_no_sign_of_work(
    slow: tuple[Context, FakeClock], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may spin while it waits for a peer."""
    ctx, clock = slow
    monkeypatch.setattr(fleet, "ask", Fleet(rank_of(clock, 40.0, cpu_s=1.0)).ask)
    with pytest.raises(RecoveryError, match="no step"):
        await first_steps(ctx, "gpt", 2, 300.0)


@pytest.mark.parametrize("stepped_before", [False, True])
async def test_a_job_without_a_session_is_up_when_its_ranks_run(
    slow: tuple[Context, FakeClock], monkeypatch: pytest.MonkeyPatch, stepped_before: bool
) -> None:
    """It reports no steps, ever; one that reported some before has a Session, which is waited for."""
    ctx, clock = slow
    if stepped_before:
        ctx.ledger.mark("gpt", 1, 1, clock.now() + 5.0)

    def rank(_name: str, _look: int) -> dict[str, Any]:
        clock.advance(20.0)
        return {"phase": RankPhase.STARTING, "reports": False}

    monkeypatch.setattr(fleet, "ask", Fleet(rank).ask)
    if stepped_before:
        with pytest.raises(RecoveryError, match="no step"):
            await first_steps(ctx, "gpt", 2, 300.0)
    else:
        began = clock.now()
        await first_steps(ctx, "gpt", 2, 300.0)
        assert clock.now() - began < 120.0


@pytest.mark.parametrize("plain", [False, True])
async def test_a_machine_that_is_gone_is_not_waited_for_as_one_that_prepares(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plain: bool
) -> None:
    """Children of the other's rank may work for hours; nor are ranks without a Session up that no one sees."""
    clock = FakeClock()
    ctx = Context(Settings(home=tmp_path), clock=clock)
    ctx.ledger.create()
    for name in ("m0", "m1"):
        register(ctx.ledger, name)
    ctx.ledger.add_job(JobSpec(name="gpt", script="t.py", machines=2, ranks_per_machine=1), "v1")
    ctx.ledger.set_job("gpt", machines=("m0", "m1"))
    ctx.ledger.open_epoch("gpt", ctx.ledger.next_epoch("gpt"), 0, "v1", ["m0", "m1"], "test", at=clock.now())
    began = clock.now()

    def rank(name: str, _look: int) -> dict[str, Any]:
        clock.advance(10.0)
        worked = 0.9 * (clock.now() - began) if name == "m0" else 0.0
        return {"phase": RankPhase.STARTING, "reports": not plain, "children_cpu_s": worked}

    both = Fleet(rank)

    async def ask(
        ctx: Context, machines: Iterable[Machine], command: object
    ) -> dict[str, JobOnMachine | HoldfastError]:
        answers = await both.ask(ctx, machines, command)
        if clock.now() - began > 40.0:
            answers["m1"] = SilentError("no answer")
        return answers

    monkeypatch.setattr(fleet, "ask", ask)
    with pytest.raises(RecoveryError, match="no step from every rank within 300 s"):
        await first_steps(ctx, "gpt", 1, 300.0)


def failing(clock: FakeClock, look_s: float, *errors: HoldfastError) -> Callable[..., Any]:
    """Looks of ``look_s`` each, at which all machines fail in the same way: by the next of ``errors`` in turn."""
    turns = itertools.cycle(errors)

    async def ask(_ctx: Context, machines: Iterable[Machine], _command: object) -> dict[str, object]:
        clock.advance(look_s)
        error = next(turns)
        return {machine.name: error for machine in machines}

    return ask


@pytest.mark.parametrize(
    ("error", "named"),
    [
        (UnavailableError("connection refused"), "refuses connections"),
        (UnknownError("no ranks of job gpt"), "has no ranks of it"),
    ],
)
async def test_machines_that_are_all_gone_are_not_waited_for(
    slow: tuple[Context, FakeClock], monkeypatch: pytest.MonkeyPatch, error: HoldfastError, named: str
) -> None:
    """No rank is left to end for the loss of another one; one that restarts its server for a moment is waited for.

    An agent that restarted answers, and its ranks ended with the one before.
    """
    ctx, clock = slow
    began = clock.now()
    monkeypatch.setattr(fleet, "ask", failing(clock, 1.0, error))
    with pytest.raises(RecoveryError, match=named):
        await first_steps(ctx, "gpt", 2, 300.0)
    assert 3.0 <= clock.now() - began < 10.0


async def test_a_machine_whose_connections_break_now_and_then_is_not_gone(
    slow: tuple[Context, FakeClock], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two that broke nothing came back at all: its ranks may run."""
    ctx, clock = slow
    errors = UnavailableError("connection reset"), SilentError("no answer")
    monkeypatch.setattr(fleet, "ask", failing(clock, 40.0, *errors))
    with pytest.raises(RecoveryError, match="no step from every rank within 300 s"):
        await first_steps(ctx, "gpt", 2, 300.0)


async def test_a_machine_that_is_reported_to_be_at_fault_ends_the_wait(
    slow: tuple[Context, FakeClock], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One without power answers nothing, and no rank fails for it: the others wait in their first collective."""
    ctx, clock = slow
    began = clock.now()
    monkeypatch.setattr(fleet, "ask", failing(clock, 1.0, SilentError("no answer")))

    def at_fault() -> str:
        return "m1: its agent is gone" if clock.now() - began > 10.0 else ""

    with pytest.raises(RecoveryError, match="epoch 2: m1: its agent is gone"):
        await first_steps(ctx, "gpt", 2, 300.0, at_fault=at_fault)
    assert clock.now() - began < 20.0

"""Holding a job at a step boundary, while its ranks go on."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.errors import RefusedError, StaleError, UnavailableError, UnknownError
from holdfast.models.agent import Hold, RankPhase, RankState
from holdfast.models.alert import IncidentClass, IncidentState
from holdfast.models.job import Job, JobState
from holdfast.models.machine import Machine
from holdfast.operations import fleet, hold, move
from holdfast.operations.context import Context
from holdfast.tasks import pause, switch
from tests.storage.ledger.samples import register
from tests.tasks.two_machines import JOB, case_of, in_use
from tests.tasks.two_ranks import Ranks


@pytest.fixture
def ctx(tmp_path: Path) -> Iterator[Context]:
    """A job of two machines with a rank each."""
    with in_use(tmp_path) as ctx:
        yield ctx


async def test_ranks_are_held_at_the_boundary_ahead_of_them(
    ctx: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slow steps: one order suffices."""
    ranks = Ranks(monkeypatch, pace=lambda: 0)
    assert await hold.hold_ranks(ctx, ctx.ledger.job(JOB), 0) == ranks.steps["m0"] == ranks.steps["m1"]
    assert len(ranks.orders) == 2


async def test_ranks_that_passed_it_are_led_to_a_later_one(
    ctx: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Short steps: they passed the boundary before they heard of it, and one waits for the other that is held."""
    paces = iter([3, 4])
    ranks = Ranks(monkeypatch, pace=lambda: next(paces, 0))
    held = await hold.hold_ranks(ctx, ctx.ledger.job(JOB), 0)
    assert held == ranks.steps["m0"] == ranks.steps["m1"]
    assert held > (ranks.orders[0] or 0)
    assert all(ranks._held(name) for name in ranks.steps)


async def test_a_rank_that_waits_in_its_next_step_for_one_that_is_held_is_led_to_a_later_boundary(
    ctx: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It completed the boundary's step, was past its look there, and cannot complete another one."""
    monkeypatch.setattr(hold, "PASSED_S", 0.0)
    ranks = Ranks(monkeypatch, pace=lambda: 0)
    ranks.past = 14
    held = await hold.hold_ranks(ctx, ctx.ledger.job(JOB), 0)
    assert ranks.orders[:2] == [14, 14]
    assert held == ranks.steps["m0"] == ranks.steps["m1"] > 14
    assert all(ranks._held(name) for name in ranks.steps)


async def test_ranks_that_are_reported_at_the_boundary_before_are_not_held_at_the_next(
    ctx: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They look for orders every 20 ms, and agents hear later still that they went on."""
    ranks = Ranks(monkeypatch, pace=lambda: 0)
    job = ctx.ledger.job(JOB)
    first = await hold.hold_ranks(ctx, job, 0)
    assert first is not None
    ranks.late_looks = 4
    assert await hold.hold_ranks(ctx, job, first + 1) == first + 1
    assert ranks.late_looks == 0
    assert ranks.steps == {"m0": first + 1, "m1": first + 1}


async def test_a_boundary_that_is_never_reached_is_let_go(
    ctx: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job goes on."""
    ranks = Ranks(monkeypatch, pace=lambda: 0)
    monkeypatch.setattr(hold, "HOLD_TIMEOUT_S", 0.0)
    with pytest.raises(RefusedError, match="did not reach step 500"):
        await hold.hold_ranks(ctx, ctx.ledger.job(JOB), 500)
    assert ranks.hold_at == {"m0": None, "m1": None}


async def test_ranks_are_let_go_when_a_machine_did_not_receive_the_order(
    ctx: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others would wait at the boundary for ever, and the job would be taken for one that hangs."""
    ranks = Ranks(monkeypatch, lambda: 0)
    real_hold = ranks.hold

    async def one_is_away(order: Hold) -> None:
        if ranks._asked == "m1":
            raise UnavailableError("no answer from m1")
        await real_hold(order)

    async def ask(
        _ctx: Context, machines: Iterable[Machine], command: Callable[[object, Machine], Awaitable[object]]
    ) -> dict[str, object]:
        answers: dict[str, object] = {}
        for machine in machines:
            ranks._asked = machine.name
            try:
                answers[machine.name] = await command(ranks, machine)
            except UnavailableError as error:
                answers[machine.name] = error
        return answers

    monkeypatch.setattr(fleet, "ask", ask)
    monkeypatch.setattr(ranks, "hold", one_is_away)
    with pytest.raises(UnavailableError):
        await hold.hold(ctx, JOB, 0)
    assert ranks.hold_at["m0"] is None
    assert ctx.ledger.job(JOB).state is JobState.RUNNING


@pytest.mark.parametrize("state", [JobState.RECOVERING, JobState.STOPPED, JobState.DONE])
@pytest.mark.parametrize("at_step", [0, None], ids=["held", "let go"])
async def test_a_job_that_was_changed_meanwhile_keeps_its_state(
    ctx: Context, monkeypatch: pytest.MonkeyPatch, state: JobState, at_step: int | None
) -> None:
    """A playbook took it up, a person stopped it, or it ended, while its ranks were on their way to the boundary."""
    ranks = Ranks(monkeypatch, pace=lambda: 0)
    real_hold = ranks.hold

    async def changed(order: Hold) -> None:
        await real_hold(order)
        ctx.ledger.set_job(JOB, state=state)

    monkeypatch.setattr(ranks, "hold", changed)
    with pytest.raises(RefusedError, match=f"is {state} "):
        await hold.hold(ctx, JOB, at_step)
    assert ctx.ledger.job(JOB).state is state
    assert ranks.hold_at == {"m0": None, "m1": None}, "ranks wait at a boundary that no one knows of"


async def test_ranks_that_a_playbook_holds_by_now_are_not_let_go(
    ctx: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hot update was taken up while a person's pause was under way: it has them where it wants them."""
    ranks = Ranks(monkeypatch, pace=lambda: 0)
    real_hold = ranks.hold

    async def taken_up(order: Hold) -> None:
        await real_hold(order)
        if ctx.ledger.acting(JOB) is None:
            case_of(ctx, IncidentClass.CODE_UPDATE)
            ctx.ledger.set_job(JOB, state=JobState.RECOVERING)

    monkeypatch.setattr(ranks, "hold", taken_up)
    with pytest.raises(RefusedError, match="is recovering"):
        await hold.hold(ctx, JOB, 0)
    assert ranks.hold_at == {"m0": 14, "m1": 14}


@pytest.mark.parametrize("when", ["before", "meanwhile"])
async def test_a_pause_that_a_person_records_is_not_undone_by_the_watch_over_forgotten_holds(
    ctx: Context, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """The gateway let ranks go that waited; the request is recorded just before, or while the order goes out."""
    ranks = Ranks(monkeypatch, pace=lambda: 0)
    seen = ctx.ledger.job(JOB)
    await hold.hold_ranks(ctx, seen, 0)
    real_hold = ranks.hold

    async def paused(order: Hold) -> None:
        await real_hold(order)
        ctx.ledger.set_held(JOB, 1, held=True)

    if when == "before":
        ctx.ledger.set_held(JOB, 1, held=True)
    else:
        monkeypatch.setattr(ranks, "hold", paused)
    assert not await hold.let_go_unheld(ctx, seen)
    assert ctx.ledger.job(JOB).state is JobState.PAUSED
    assert all(ranks._held(name) for name in ranks.steps)


async def test_a_pause_that_is_not_made_true_again_leaves_ranks_alone_that_a_playbook_holds_by_now(
    ctx: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The watch over forgotten holds met a person's pause, and then a hot update."""
    ranks = Ranks(monkeypatch, pace=lambda: 0)
    seen, order = ctx.ledger.job(JOB), hold.hold_ranks
    await hold.hold_ranks(ctx, seen, 0)

    async def ordered(ctx: Context, job: Job, at_step: int | None) -> int | None:
        held = await order(ctx, job, at_step)
        if at_step is None:
            ctx.ledger.set_held(JOB, 1, held=True)
            return held
        case_of(ctx, IncidentClass.CODE_UPDATE)
        ctx.ledger.set_job(JOB, state=JobState.RECOVERING)
        raise RefusedError("they did not all come to it")

    monkeypatch.setattr(hold, "hold_ranks", ordered)
    with pytest.raises(RefusedError, match="did not all come"):
        await hold.let_go_unheld(ctx, seen)
    assert None not in ranks.hold_at.values()


def test_a_playbook_that_works_while_the_job_trains_holds_its_ranks_once_it_begins_to(ctx: Context) -> None:
    """A vote on the slow machine takes minutes; then the ranks are held at a boundary."""
    case = case_of(ctx, IncidentClass.FAIL_SLOW)
    ctx.ledger.set_job(JOB, state=JobState.RECOVERING)
    assert not hold.is_held_by_a_playbook(ctx, JOB)
    ctx.ledger.begin(case.incident_id, 1, f"hold:{case.life}", "hold", {})
    assert hold.is_held_by_a_playbook(ctx, JOB)


async def test_ranks_that_no_one_holds_go_on(ctx: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not those whose playbook works on them."""
    ranks = Ranks(monkeypatch, pace=lambda: 0)
    seen = ctx.ledger.job(JOB)
    await hold.hold_ranks(ctx, seen, 0)
    assert await hold.let_go_unheld(ctx, seen)
    assert ranks.hold_at == {"m0": None, "m1": None}
    await hold.hold_ranks(ctx, seen, 0)
    case_of(ctx, IncidentClass.SCALE_JOB)
    assert not await hold.let_go_unheld(ctx, seen)
    assert all(ranks._held(name) for name in ranks.steps)


async def test_a_job_that_was_started_again_meanwhile_is_not_recorded_as_held(
    ctx: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ranks that reached the boundary are those of a former epoch."""
    ranks = Ranks(monkeypatch, pace=lambda: 0)
    real_hold = ranks.hold

    async def started(order: Hold) -> None:
        await real_hold(order)
        if ctx.ledger.job(JOB).epoch == 1:
            ctx.ledger.next_epoch(JOB)

    monkeypatch.setattr(ranks, "hold", started)
    with pytest.raises(RefusedError, match="epoch 2"):
        await hold.hold(ctx, JOB, 0)
    assert ctx.ledger.job(JOB).state is JobState.RUNNING


async def test_an_agent_without_ranks_of_the_job_is_no_obstacle_to_stopping_it(
    ctx: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It restarted, or an attempt was cut off before the start: every further attempt would find the same."""

    async def unknown(*_: object) -> None:
        raise UnknownError("no ranks of job 'gpt' on this machine")

    monkeypatch.setattr(pause, "next_save", unknown)
    case = case_of(ctx, IncidentClass.SCALE_JOB)
    await pause.hold_at_boundary.fn(case)
    assert [(each.result or {}).get("held") for each in case.done("hold")] == [False]


@pytest.mark.parametrize(
    ("came", "let_go"), [(IncidentClass.FAIL_SLOW, True), (IncidentClass.CODE_UPDATE, False)]
)
async def test_ranks_that_a_move_holds_go_on_when_what_comes_first_leaves_the_job_alone(
    ctx: Context, monkeypatch: pytest.MonkeyPatch, came: IncidentClass, let_go: bool
) -> None:
    """It may ask a person, for hours; a playbook that stops the job holds the same ranks."""
    ranks, ledger = Ranks(monkeypatch, pace=lambda: 0), ctx.ledger
    register(ledger, "m2")
    moving = case_of(ctx, IncidentClass.PLANNED_MOVE).model_copy(update={"lease": "the move"})
    ledger.take_job(moving.incident_id, 1, "run 1", "the move", 60.0)

    async def held(*_: object) -> move.AtBoundary:
        step = await hold.hold_ranks(ctx, ledger.job(JOB), 0)
        ledger.end_incident(moving.incident_id, IncidentState.DISMISSED, "gave way", ctx.clock.now())
        ledger.take_job(case_of(ctx, came).incident_id, 1, "run 2", "the other", 60.0)
        return move.AtBoundary(step=step or 0, copied=True, at=ctx.clock.now())

    monkeypatch.setattr(move, "hold_for_move", held)
    asked: Any = SimpleNamespace(machine="m1")
    with pytest.raises(StaleError):
        await switch._hold(moving, asked, "m2")
    assert set(ranks.hold_at.values()) == ({None} if let_go else {14})


async def test_a_move_that_wakes_late_leaves_ranks_alone_that_a_person_holds(
    ctx: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its incident gave way to another one, and the job was paused since."""
    ranks, ledger = Ranks(monkeypatch, pace=lambda: 0), ctx.ledger
    moving = case_of(ctx, IncidentClass.PLANNED_MOVE).model_copy(update={"lease": "the move"})
    ledger.take_job(moving.incident_id, 1, "run 1", "the move", 60.0)
    ledger.end_incident(moving.incident_id, IncidentState.DISMISSED, "gave way", ctx.clock.now())
    ledger.take_job(case_of(ctx, IncidentClass.FAIL_SLOW).incident_id, 1, "run 2", "the other", 60.0)
    await hold.hold(ctx, JOB, 0)
    asked: Any = SimpleNamespace(machine="m1")
    with pytest.raises(StaleError):
        await switch._hold(moving, asked, "m2")
    assert ledger.job(JOB).state is JobState.PAUSED
    assert None not in ranks.hold_at.values()


@pytest.mark.parametrize(
    ("step", "step_s", "pause_s"), [(10, 5.0, 1.0), (98, 0.5, 0.25), (99, 5.0, 0.02), (10, 0.0, 0.02)]
)
def test_agents_are_asked_often_only_near_the_boundary(step: int, step_s: float, pause_s: float) -> None:
    """It is a hundred steps ahead where every hundredth is saved, and there may be a thousand machines."""
    rank = RankState(rank=0, pid=1, phase=RankPhase.RUNNING, step=step, step_s=step_s)
    assert hold._pause_s([rank], at_step=100) == pause_s


@pytest.mark.parametrize(
    ("step_s", "every", "longest_s", "limit_s"),
    [
        (0.5, 1, hold.LONGEST_HOLD_S, 30.0),
        (15.0, 1, hold.LONGEST_HOLD_S, 90.0),
        (60.0, 1, hold.LONGEST_HOLD_S, 120.0),
        (60.0, 1, hold.HOLD_TIMEOUT_S, 30.0),
        (15.0, 10, hold.LONGEST_HOLD_S, 300.0),
        (0.1, 50, hold.LONGEST_HOLD_S, 30.0),
    ],
)
def test_slow_steps_are_waited_for(step_s: float, every: int, longest_s: float, limit_s: float) -> None:
    """A boundary is up to three steps ahead; a job whose step takes 15 s was never moved, nor held for an update."""
    rank = RankState(rank=0, pid=1, phase=RankPhase.RUNNING, step=10, step_s=step_s)
    assert hold._limit_s([rank], 10 + 3 * every, every, longest_s) == limit_s

"""Holding a job at a step boundary that all its ranks saved."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import RefusedError, SilentError, UnavailableError
from holdfast.models.agent import AgentState, Rendezvous, Waiting
from holdfast.models.alert import IncidentClass
from holdfast.models.job import Job
from holdfast.models.machine import Machine
from holdfast.operations import fleet, hold, move
from holdfast.operations.context import Context
from holdfast.operations.saved_step import SavedStep
from holdfast.tasks import pause
from tests.storage.ledger.samples import register
from tests.tasks.two_machines import JOB, case_of, in_use
from tests.tasks.two_ranks import Ranks


@pytest.fixture
def ctx(tmp_path: Path) -> Iterator[Context]:
    """A job of two machines with a rank each."""
    with in_use(tmp_path) as ctx:
        yield ctx


async def test_a_boundary_whose_step_a_rank_left_out_is_followed_by_another(
    ctx: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It heard of the boundary after its call: what comes back is the step that all saved."""
    ranks = Ranks(monkeypatch, pace=lambda: 0)
    ranks.left_out = {15}
    case = case_of(ctx, IncidentClass.CODE_UPDATE)
    await pause.hold_at_boundary.fn(case)
    (held,) = ctx.ledger.actions(case.incident_id)
    assert held.result == {"held": True, "step": 16}
    assert {each for each in ranks.orders if each} == {15, 16}
    assert ranks.steps == {"m0": 16, "m1": 16}


async def test_the_boundary_after_one_that_is_not_saved_is_one_that_is(
    ctx: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ranks that had not reported a step since their start are held where they are, between two saves."""
    orders: list[int | None] = []

    Ranks(monkeypatch, pace=lambda: 0).saves = (0, 10)

    async def held(_ctx: Context, _job: Job, at_step: int | None, **_: object) -> int | None:
        orders.append(at_step)
        return at_step or 13

    async def saved(step: int) -> int | None:
        return step if step % 10 == 0 else None

    monkeypatch.setattr(hold, "hold_ranks", held)
    assert await hold.hold_saved(ctx, ctx.ledger.job(JOB), saved) == 20
    assert orders == [0, 20]


async def test_of_a_script_that_saves_now_and_then_a_step_that_it_saves_is_held(
    ctx: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It calls checkpoint() after steps 7, 57, 107: nothing is done again, where any other boundary cost 50 steps."""
    ranks = Ranks(monkeypatch, pace=lambda: 0)
    ranks.saves, ranks.left_out = (7, 50), set(range(1, 200)) - {7, 57, 107}
    case = case_of(ctx, IncidentClass.CODE_UPDATE)
    await pause.hold_at_boundary.fn(case)
    (held,) = ctx.ledger.actions(case.incident_id)
    assert held.result == {"held": True, "step": 57}
    assert {each for each in ranks.orders if each} == {57}


async def test_a_boundary_of_every_step_is_waited_for_however_long_steps_are(
    ctx: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As ever: it cannot be nearer."""
    Ranks(monkeypatch, pace=lambda: 0).step_s = 70.0
    following = await hold.next_save(ctx, ctx.ledger.job(JOB))
    assert (following.away, following.is_far, following.is_soon) == (hold.HOLD_AHEAD, False, True)


async def test_a_save_that_is_far_is_not_waited_for(ctx: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """An update stops the job at the next step, and loses those since the last save; a move is refused."""
    ranks = Ranks(monkeypatch, pace=lambda: 0)
    ranks.saves, ranks.step_s = (7, 50), 5.0
    with pytest.raises(RefusedError, match="every 50 steps are saved, the next time in about 230 s"):
        await move.hold_for_move(ctx, ctx.ledger.job(JOB), "m1", "m2")
    case = case_of(ctx, IncidentClass.CODE_UPDATE)
    await pause.hold_at_boundary.fn(case)
    (held,) = ctx.ledger.actions(case.incident_id)
    assert held.result == {"held": True, "step": 16}


@pytest.mark.parametrize(
    ("seen", "step_s", "until_s", "looks"),
    [
        ([9, 6, 3], 5.0, 600.0, 3),
        ([9, 6, 3], 5.0, -1.0, 1),
        ([9, UnavailableError("m0"), 3], 5.0, 600.0, 2),
        ([3, 2], 30.0, 600.0, 2),
        ([2], 30.0, 600.0, 1),
    ],
    ids=["near at last", "too late to wait", "not known", "slow steps", "every step"],
)
async def test_ranks_that_were_started_ahead_wait_until_a_save_is_near(  # noqa: PLR0917
    ctx: Context,
    monkeypatch: pytest.MonkeyPatch,
    seen: list[Any],
    step_s: float,
    until_s: float,
    looks: int,
) -> None:
    """They end 60 s after they were asked for last: the switch begins shortly before the step that is saved."""
    asked: list[str] = []

    async def ask(_ctx: Context, machines: Iterable[Machine], _command: object) -> dict[str, object]:
        asked.extend(machine.name for machine in machines)
        return {name: Waiting(ready=True) for name in ("m0", "m2")}

    async def next_save(*_: object) -> hold.NextSave:
        if isinstance(away := seen.pop(0), Exception):
            raise away
        return hold.NextSave(boundaries=hold.Boundaries(), away=away, away_s=away * step_s)

    register(ctx.ledger, "m2")
    monkeypatch.setattr(fleet, "ask", ask)
    monkeypatch.setattr(move, "next_save", next_save)
    monkeypatch.setattr(move, "start_orders", lambda *_: {})
    meet = Rendezvous(host="127.0.0.1", port=1)
    brought = move.Brought(epoch=2, rendezvous=meet)
    until = ctx.clock.now() + until_s
    assert await move.wait_ahead(ctx, ctx.ledger.job(JOB), "m1", "m2", brought, until) == brought
    assert asked.count("m2") == looks


async def test_a_machine_that_is_slow_to_answer_is_asked_at_the_next_boundary(
    ctx: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job is not stopped in the middle of a step for it."""
    asked, slow = Ranks(monkeypatch, pace=lambda: 0).ask, [True]

    async def ask(
        ctx: Context, machines: Iterable[Machine], command: Callable[[object, Machine], Awaitable[object]]
    ) -> dict[str, object]:
        answers = await asked(ctx, machines, command)
        if slow and any(isinstance(each, AgentState) and each.shards for each in answers.values()):
            slow.clear()
            await ctx.clock.sleep(pause.SAVED_S)
            answers["m1"] = SilentError("ReadTimeout")
        return answers

    monkeypatch.setattr(fleet, "ask", ask)
    case = case_of(ctx, IncidentClass.CODE_UPDATE)
    await pause.hold_at_boundary.fn(case)
    (held,) = ctx.ledger.actions(case.incident_id)
    assert held.result == {"held": True, "step": 16}


async def test_only_machines_whose_shards_of_the_step_are_missing_are_asked_again(
    ctx: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There may be a thousand of them, whose ranks all wait; a machine that is silent is asked again, too."""
    ranks, silent = Ranks(monkeypatch, pace=lambda: 0), ["m0"]
    ranks.left_out = {10}
    asked = ranks.ask

    async def ask(
        ctx: Context, machines: Iterable[Machine], command: Callable[[object, Machine], Awaitable[object]]
    ) -> dict[str, object]:
        answers = await asked(ctx, machines, command)
        return {
            name: SilentError("ReadTimeout") if name in silent else each for name, each in answers.items()
        }

    monkeypatch.setattr(fleet, "ask", ask)
    ranks.hold_at = {"m0": 10, "m1": 10}
    saved = SavedStep(ctx, ctx.ledger.job(JOB), 10)
    await saved.look()
    assert (saved.is_whole, list(saved.states)) == (False, ["m1"])
    silent.clear()
    await saved.look()
    assert (saved.is_whole, list(saved.states)) == (False, ["m1", "m0"])
    ranks.left_out.clear()
    await saved.look()
    assert saved.is_whole
    assert ranks.looked == [(name, JOB, 10) for name in ("m0", "m1", "m0", "m1", "m1")]


async def test_ranks_that_save_no_boundary_go_on(ctx: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """A script that saves now and then: it is stopped where it is."""
    ranks = Ranks(monkeypatch, pace=lambda: 0)
    ranks.left_out = set(range(2, 100))
    case = case_of(ctx, IncidentClass.CODE_UPDATE)
    await pause.hold_at_boundary.fn(case)
    (held,) = ctx.ledger.actions(case.incident_id)
    assert held.result is not None
    assert not held.result["held"]
    assert held.result["why"] == "step 17, at which the job was held, is not saved by all ranks"
    assert ranks.hold_at == {"m0": None, "m1": None}

"""Holding a job at a step boundary, while its ranks go on."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.errors import RefusedError, SilentError, StaleError, UnavailableError, UnknownError
from holdfast.models.agent import (
    AgentState,
    Hold,
    JobOnMachine,
    RankPhase,
    RankState,
    Rendezvous,
    Waiting,
)
from holdfast.models.alert import IncidentClass, IncidentState
from holdfast.models.checkpoint import Shard, Tier
from holdfast.models.job import Job, JobState
from holdfast.models.machine import Machine
from holdfast.operations import fleet, hold, move
from holdfast.operations.context import Context
from holdfast.operations.saved_step import SavedStep
from holdfast.tasks import pause, switch
from holdfast.tasks.context import use
from tests.storage.ledger.samples import register
from tests.tasks.two_machines import JOB, case_of, running_job


@pytest.fixture
def ctx(tmp_path: Path) -> Iterator[Context]:
    """A job of two machines with a rank each."""
    ctx = running_job(tmp_path)
    use(ctx)
    yield ctx
    use(None)


class Ranks:
    """Two ranks that share a collective in each step, and go on while the machines are asked and told.

    Args:
        monkeypatch: puts it in the place of the agents.
        pace: steps that they do, where nobody holds them, before each machine hears an order.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, pace: Callable[[], int]) -> None:
        self.steps = {"m0": 10, "m1": 10}
        self.hold_at: dict[str, int | None] = {"m0": None, "m1": None}
        self.orders: list[int | None] = []
        self.left_out = set[int]()
        """Steps that m1 does not save."""
        self.saves = (0, 1)
        """A step that is saved, and steps between two of these."""
        self.step_s = 0.0
        self.past: int | None = None
        """The step at whose end m0 looks for no order any more: it is in its next one, for which it needs m1."""
        self.late_looks = 0
        """Answers of machines, from now on, in which ranks are where they were, held, though they were let go."""
        self.looked: list[tuple[str, str, int]] = []
        """Machines that were asked for their shards of one step, with its job and number."""
        self._pace = pace
        monkeypatch.setattr(fleet, "ask", self.ask)

    async def ask(
        self,
        _ctx: Context,
        machines: Iterable[Machine],
        command: Callable[[object, Machine], Awaitable[object]],
    ) -> dict[str, object]:
        answers: dict[str, object] = {}
        for machine in machines:
            self._asked = machine.name
            answers[machine.name] = await command(self, machine)
        return answers

    async def hold(self, order: Hold) -> None:
        for _ in range(self._pace()):
            self._step()
        self.orders.append(order.at_step)
        self.hold_at[self._asked] = order.at_step

    async def state(self, *, shards: bool = True, saved: tuple[str, int] | None = None) -> AgentState:
        if saved is not None:
            self.looked.append((self._asked, *saved))
        late, self.late_looks = self.late_looks > 0, max(0, self.late_looks - 1)
        if not late:
            self._step()
        number = int(self._asked[1:])
        step, paused = self.steps[self._asked], late or self._held(self._asked)
        saves_at, saves_every = self.saves
        rank = RankState(
            rank=number,
            pid=1,
            phase=RankPhase.RUNNING,
            step=step,
            step_s=self.step_s,
            paused=paused,
            saves_at=saves_at,
            saves_every=saves_every,
        )
        run = JobOnMachine(job=JOB, epoch=1, ranks=(rank,))
        steps = [each for each in range(1, step + 1) if number == 0 or each not in self.left_out]
        shard = Shard(
            job=JOB,
            rank=number,
            step=steps[-1],
            epoch=1,
            machine=self._asked,
            tier=Tier.MEMORY,
            nbytes=1,
            digest="",
        )
        held = (shard,) if shards and saved in {None, (JOB, shard.step)} else ()
        return AgentState(machine=self._asked, incarnation="boot-1", jobs=(run,), shards=held)

    def _held(self, name: str) -> bool:
        at = self.hold_at[name]
        past = name == "m0" and self.steps[name] == self.past
        return at is not None and self.steps[name] >= at and not past

    def _step(self) -> None:
        """One step of each rank that is not held, and whose collective the other is not behind with."""
        behind = min(self.steps.values())
        if behind == self.past and self._held("m1"):
            return
        for name in self.steps:
            if not self._held(name) and self.steps[name] == behind:
                self.steps[name] += 1


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


async def test_a_boundary_that_is_never_reached_is_let_go(
    ctx: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job goes on."""
    ranks = Ranks(monkeypatch, pace=lambda: 0)
    monkeypatch.setattr(hold, "HOLD_TIMEOUT_S", 0.0)
    with pytest.raises(RefusedError, match="did not reach step 500"):
        await hold.hold_ranks(ctx, ctx.ledger.job(JOB), 500)
    assert ranks.hold_at == {"m0": None, "m1": None}


async def test_ranks_are_let_go_when_a_machine_did_not_hear_the_order(
    ctx: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others would wait at the boundary for ever, and the job would be taken for one that hangs."""
    ranks = Ranks(monkeypatch, lambda: 0)
    heard = ranks.hold

    async def one_is_away(order: Hold) -> None:
        if ranks._asked == "m1":
            raise UnavailableError("no answer from m1")
        await heard(order)

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
    heard = ranks.hold

    async def changed(order: Hold) -> None:
        await heard(order)
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
    heard = ranks.hold

    async def taken_up(order: Hold) -> None:
        await heard(order)
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
    heard = ranks.hold

    async def paused(order: Hold) -> None:
        await heard(order)
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
    heard = ranks.hold

    async def started(order: Hold) -> None:
        await heard(order)
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

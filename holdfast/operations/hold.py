"""Hold a job's ranks at a step boundary, all at the same one, and let them go."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from holdfast.errors import HoldfastError, RefusedError
from holdfast.models.agent import Hold, RankPhase, RankState
from holdfast.models.base import Frozen
from holdfast.models.job import Job, JobState
from holdfast.models.machine import Machine
from holdfast.operations import fleet
from holdfast.operations.context import Context
from holdfast.policies.escalate import overtake

HOLD_TIMEOUT_S = 30.0
LONGEST_HOLD_S = 120.0
"""The same for a playbook, where steps take long: a boundary is up to three of them ahead."""
SOON_S = 20.0
"""A boundary that is so near is soon reached."""

LOOK_S = 0.02
"""Between two looks while the ranks are a step from the boundary; longer while they are further away, at most:"""
LONGEST_LOOK_S = 1.0
HOLD_AHEAD = 2
"""Steps from the furthest rank to the boundary that all are held at; doubled each time that one passed it before."""
PASSED_S = 10.0
"""A rank that has completed the step of the boundary, and is not held there for so long while others are, went past it
before the order reached its machine, and waits for them in the middle of its next step."""
_BOUNDARIES = 3
"""Boundaries at which the ranks are held until the step of one is saved by all."""

T = TypeVar("T")


class Boundaries(Frozen):
    """The steps after which ranks may be held: every so many, ``at`` being one of them."""

    every: int = 1
    at: int = 0

    def after(self, step: int) -> int:
        """Return the first one that is not before ``step``."""
        return step + (self.at - step) % self.every


async def hold(ctx: Context, job_name: str, at_step: int | None) -> int | None:
    """Hold a job for a person at a step boundary (``at_step`` None: let it go); returns the step it holds at.

    ``at_step`` 0 means "as soon as possible": the earliest boundary that no rank has passed yet.

    Raises:
        RefusedError: the job does not run, or its ranks did not reach the boundary in time (they go on); or it was
            recovered, stopped or ended meanwhile, and its state is that of those who did so.
        UnavailableError: a machine does not answer (the others' ranks go on).
    """
    job = ctx.ledger.job(job_name)
    if job.state not in (JobState.RUNNING, JobState.PAUSED):
        raise RefusedError(f"job {job_name} is {job.state}: only a running job can be held")
    try:
        held = await hold_ranks(ctx, job, at_step)
        ctx.ledger.set_held(job_name, job.epoch, held=held is not None)
    except HoldfastError:
        if at_step is not None:
            with contextlib.suppress(HoldfastError):
                await _let_go(ctx, job)
        raise
    return held


def is_held_by_a_playbook(ctx: Context, job_name: str) -> bool:
    """Return whether a playbook that stops the job has taken it up: it alone lets its ranks go.

    One that looks, or asks a person, while the job trains does not hold it, until it begins to.
    """
    acting = ctx.ledger.acting(job_name, evidence=False)
    if acting is None or ctx.ledger.job(job_name).state is not JobState.RECOVERING:
        return False
    return not overtake.leaves_alone(acting, ctx.ledger.actions(acting.id, evidence=False))


async def _let_go(ctx: Context, job: Job) -> None:
    """Have ranks go on that could not all be held: those that heard the order would wait for the others for ever.

    Not those that a playbook holds by now.
    """
    if is_held_by_a_playbook(ctx, job.name):
        return
    await hold_ranks(ctx, job, None)
    ctx.ledger.set_held(
        job.name, job.epoch, held=False
    )  # another request may have recorded it as held meanwhile


async def let_go_unheld(ctx: Context, job: Job) -> bool:
    """Let ranks go that wait at a boundary though no one holds their job; return whether they go on.

    What is recorded stays: a pause that a person's request recorded while the order went out is made true again.

    Raises:
        UnavailableError: a machine does not answer, or the ledger.
        RefusedError: the ranks could not be held again; the job is recorded as running, which it is.
    """
    if not await asyncio.to_thread(ctx.ledger.trains_unheld, job.name, job.epoch):
        return False
    await hold_ranks(ctx, job, None)
    present = await asyncio.to_thread(ctx.ledger.job, job.name)
    if (present.state, present.epoch) != (JobState.PAUSED, job.epoch):
        return True
    try:
        await hold_ranks(ctx, job, 0)
    except HoldfastError:
        await _let_go(ctx, job)
        raise
    return False


async def hold_ranks(
    ctx: Context,
    job: Job,
    at_step: int | None,
    *,
    boundaries: Boundaries | None = None,
    longest_s: float = HOLD_TIMEOUT_S,
) -> int | None:
    """Hold the ranks, or let them go; leave the job's state alone.

    ``at_step`` 0 is the earliest of the ``boundaries`` (None: any) ahead of all ranks. Where steps are slow it is
    waited for up to ``longest_s``, and never less long than :data:`HOLD_TIMEOUT_S`.

    Ranks are at most one step apart, so the boundary after the next one is ahead of all of them, unless they passed it
    before the order reached all machines. Then some are held there, while others wait for them in the middle of a
    later step: they are moved to a boundary that is further ahead.

    Ranks that are held at an earlier boundary go on to the new one; until their agents hear that they did, they are
    reported as held at the old one.
    """
    machines, boundaries = ctx.ledger.machines_named(job.machines), boundaries or Boundaries()
    if at_step is None:
        await _order_hold(ctx, job, machines, None)
        return None
    ahead, ranks = HOLD_AHEAD, await _ranks(ctx, machines, job.name)
    at_step = at_step or boundaries.after(_furthest(ranks) + ahead)
    await _order_hold(ctx, job, machines, at_step)
    began = ctx.clock.monotonic()
    deadline = began + _limit_s(ranks, at_step, boundaries.every, longest_s)
    split_at: float | None = None
    while (now := ctx.clock.monotonic()) < deadline:
        ranks = await _ranks(ctx, machines, job.name)
        if any(rank.phase is RankPhase.EXITED for rank in ranks):
            raise RefusedError(f"job {job.name}: a rank ended before step {at_step}")
        held_at = {rank.step for rank in ranks if rank.paused}
        reached = len(ranks) == job.spec.world_size and all(rank.step >= at_step for rank in ranks)
        if reached and all(rank.paused for rank in ranks) and len(held_at) == 1:
            return held_at.pop()
        split_at = None if not (reached and held_at) else now if split_at is None else split_at
        if _furthest(ranks) > at_step or (split_at is not None and now - split_at >= PASSED_S):
            ahead, split_at = ahead * 2, None
            at_step = boundaries.after(_furthest(ranks) + ahead)
            await _order_hold(ctx, job, machines, at_step)
            if longest_s > HOLD_TIMEOUT_S:
                # A person waits no longer; a playbook may have slow steps before it.
                deadline = max(deadline, now + _limit_s(ranks, at_step, boundaries.every, longest_s))
        await asyncio.sleep(_pause_s(ranks, at_step))
    await _order_hold(ctx, job, machines, None)
    waited_s = ctx.clock.monotonic() - began
    raise RefusedError(f"job {job.name} did not reach step {at_step} in {waited_s:.0f} s; it goes on")


class NextSave(Frozen):
    """Where ranks could be held next so that nothing is lost."""

    boundaries: Boundaries
    away: int
    """Steps to it from the furthest rank's last one."""
    away_s: float
    """How long they take, about; 0: not known."""

    @property
    def is_far(self) -> bool:
        """Whether it is not waited for. One of every step is, however long these take."""
        return self.boundaries.every > 1 and self.away_s > LONGEST_HOLD_S

    @property
    def is_soon(self) -> bool:
        """Whether ranks may be ordered to hold there now."""
        return self.away <= HOLD_AHEAD or self.away_s <= SOON_S


async def next_save(ctx: Context, job: Job) -> NextSave:
    """Look at the first machine's ranks for the steps that are saved: as the job file has them, or the script calls.

    Raises:
        HoldfastError: the machine does not answer.
    """
    ranks = await _ranks(ctx, ctx.ledger.machines_named(job.machines[:1]), job.name)
    boundaries = Boundaries(every=job.spec.checkpoint.memory_every_steps)
    rarest = max(ranks, key=lambda rank: rank.saves_every, default=None)
    if rarest is not None and rarest.saves_every > boundaries.every:
        boundaries = Boundaries(every=rarest.saves_every, at=rarest.saves_at)
    furthest = _furthest(ranks)
    away = boundaries.after(furthest + HOLD_AHEAD) - furthest
    return NextSave(boundaries=boundaries, away=away, away_s=away * _step_s(ranks))


async def hold_saved(
    ctx: Context,
    job: Job,
    saved: Callable[[int], Awaitable[T | None]],
    *,
    following: NextSave | None = None,
) -> T:
    """Hold all ranks at one boundary whose very step is saved by all. When that cannot be, they go on.

    On a busy host a rank may have left out the save of that step, since it heard of the boundary late: then the next
    one is tried, of which all hear before they leave this one.

    Args:
        ctx: of the playbook.
        job: that is held.
        saved: waits, bounded, until all have saved the step; None: some have not.
        following: the next save, where it is known.

    Returns:
        what ``saved`` returned.

    Raises:
        RefusedError: they did not come to one boundary, or its step is not saved by all; or none is saved soon.
        UnavailableError: a machine does not answer.
    """
    following = following or await next_save(ctx, job)
    boundaries = following.boundaries
    if following.is_far:
        raise RefusedError(
            f"every {boundaries.every} steps are saved, the next time in about {following.away_s:.0f} s"
        )
    try:
        step: int | None = 0
        for _ in range(_BOUNDARIES):
            at_step = step and boundaries.after(step + 1)
            step = await hold_ranks(ctx, job, at_step, boundaries=boundaries, longest_s=LONGEST_HOLD_S)
            assert step is not None
            if (found := await saved(step)) is not None:
                return found
    except HoldfastError:
        with contextlib.suppress(HoldfastError):
            await hold_ranks(ctx, job, None)
        raise
    await hold_ranks(ctx, job, None)
    raise RefusedError(f"step {step}, at which the job was held, is not saved by all ranks")


async def _order_hold(ctx: Context, job: Job, machines: list[Machine], at_step: int | None) -> None:
    def order(machine: Machine) -> Hold:
        return Hold(job=job.name, epoch=job.epoch, incarnation=machine.incarnation, at_step=at_step)

    fleet.all_or_raise(await fleet.ask(ctx, machines, lambda agent, machine: agent.hold(order(machine))))


def _limit_s(ranks: Sequence[RankState], at_step: int, every: int, longest_s: float) -> float:
    """Return how long the boundary is waited for: twice as long as the steps up to it take, within limits."""
    away = at_step - min((rank.step for rank in ranks), default=at_step)
    if (step_s := _step_s(ranks)) == 0:
        return HOLD_TIMEOUT_S * every
    return max(HOLD_TIMEOUT_S, min(max(longest_s, HOLD_TIMEOUT_S * every), 2 * away * step_s))


def _pause_s(ranks: Sequence[RankState], at_step: int) -> float:
    """Return the pause before the next look: every agent is asked, and the boundary may be a hundred steps ahead."""
    away = at_step - 1 - _furthest(ranks)
    return min(LONGEST_LOOK_S, max(LOOK_S, away * _step_s(ranks) / 2))


def _step_s(ranks: Sequence[RankState]) -> float:
    """Return how long a step takes, about; 0: not known."""
    return max((rank.step_s for rank in ranks), default=0.0)


def _furthest(ranks: Sequence[RankState]) -> int:
    return max((rank.step for rank in ranks), default=0)


async def _ranks(ctx: Context, machines: list[Machine], job: str) -> list[RankState]:
    answers = fleet.answered(await fleet.ask(ctx, machines, lambda agent, _: agent.state(shards=False)))
    return [rank for state in answers.values() for run in state.jobs if run.job == job for rank in run.ranks]

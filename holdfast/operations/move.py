"""The acts of a planned move: a job's next epoch is brought up on other machines while it trains, then switched to."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable

from holdfast.agent.client import AgentClient
from holdfast.errors import HoldfastError, UnavailableError
from holdfast.models.agent import AgentState, Ahead, Mirror, OpenRendezvous, Rendezvous, Waiting, store_ahead
from holdfast.models.base import Frozen
from holdfast.models.checkpoint import FirstTier, RestorePlan
from holdfast.models.job import Job
from holdfast.models.machine import Machine
from holdfast.operations import fleet
from holdfast.operations.context import Context
from holdfast.operations.hold import hold_saved, next_save
from holdfast.operations.launch import start_orders
from holdfast.operations.saved_step import SavedStep

LOOK_S = 0.1
_LONGEST_HOLD_S = 10.0
KEEP_S = 60.0
"""Ranks that were started ahead, and copies, are given up so long after the last look at them."""
_NOTHING_YET = RestorePlan(step=0, tier=None, reasons=("not known before the switch",))


class Brought(Frozen):
    """The next epoch, as far as it is there."""

    epoch: int
    rendezvous: Rendezvous | None = None
    """Where its ranks have met; None: they are forked at the switch."""
    why_not: str = ""
    """Why its ranks were not started ahead."""


def after_move(ctx: Context, job: Job, leaves: str, joins: str) -> list[Machine]:
    """Return the job's machines as they are after the move, by slot."""
    return ctx.ledger.machines_named([joins if name == leaves else name for name in job.machines])


async def bring(ctx: Context, job: Job, leaves: str, joins: str) -> Brought:
    """Bring code, newest shards and the ranks of the next epoch to where they will be needed. May be repeated.

    Training is not touched. Ranks ahead are a gain of time, and no condition: without them the move takes longer.

    Raises:
        HoldfastError: the code cannot be brought to the machine that joins.
    """
    (joining,) = ctx.ledger.machines_named([joins])
    fleet.all_or_raise(await fleet.prepare_code(ctx, job, job.code_version, [joining]))
    await mirror(ctx, job, leaves, joining)
    epoch = job.epoch + 1
    if not ctx.policy.planned_move.ahead:
        return Brought(epoch=epoch, why_not="the policy does not want it (planned_move.ahead)")
    machines = after_move(ctx, job, leaves, joins)
    first = machines[0]
    meet = OpenRendezvous(
        job=store_ahead(job.name),
        epoch=epoch,
        incarnation=first.incarnation,
        world_size=job.spec.world_size,
    )
    try:
        rendezvous = await ctx.agent(first).open_rendezvous(meet)
    except HoldfastError as error:
        return Brought(epoch=epoch, why_not=str(error))
    return Brought(epoch=epoch, rendezvous=rendezvous)


async def mirror(ctx: Context, job: Job, leaves: str, joining: Machine) -> None:
    """Have the machine that is left send what its ranks save to the one that joins; a failure costs only time."""
    if job.spec.checkpoint.first_tier is not FirstTier.MEMORY:
        return
    order = Mirror(
        job=job.name,
        epoch=job.epoch,
        incarnation=ctx.ledger.machine(leaves).incarnation,
        address=joining.data_address,
        keep_s=KEEP_S,
    )
    await fleet.ask(ctx, ctx.ledger.machines_named([leaves]), lambda agent, _: agent.mirror(order))


async def wait_ahead(  # noqa: PLR0917
    ctx: Context, job: Job, leaves: str, joins: str, brought: Brought, until: float
) -> Brought:
    """Wait until all ranks of the next epoch wait at their restore; without a rendezvous when they will not.

    Where not every step is saved, wait until the next one that is is near as well, no longer than ``until``. Keeps
    ranks, and the copies, alive meanwhile.

    Raises:
        UnavailableError: the machine that joins does not answer.
    """
    machines = after_move(ctx, job, leaves, joins)
    (joining,) = ctx.ledger.machines_named([joins])
    if brought.rendezvous is None:
        return brought
    orders = start_orders(ctx, job, brought.epoch, machines, _NOTHING_YET, brought.rendezvous)

    def ask(agent: AgentClient, machine: Machine) -> Awaitable[Waiting]:
        on_gpus = ctx.policy.planned_move.ahead_on_gpus
        return agent.start_ahead(Ahead(start=orders[machine.name], keep_s=KEEP_S, on_gpus=on_gpus))

    while True:
        began = ctx.clock.monotonic()
        answers = await fleet.ask(ctx, machines, ask)
        waiting = fleet.answered(answers)
        if isinstance(lost := answers[joins], UnavailableError):
            raise lost
        failed = [str(error) for error in answers.values() if isinstance(error, HoldfastError)]
        failed += [each.why_not for each in waiting.values() if each.why_not]
        if failed:
            return brought.model_copy(update={"rendezvous": None, "why_not": failed[0]})
        late, ready = ctx.clock.now() > until, all(each.ready for each in waiting.values())
        if ready and (late or await _saves_soon(ctx, job)):
            return brought
        if late:
            return brought.model_copy(
                update={"rendezvous": None, "why_not": "not all ranks came to wait in time"}
            )
        await mirror(ctx, job, leaves, joining)
        # A thousand machines take a second to ask, all of it this process's own: half of the time is others'.
        await ctx.clock.sleep(max(LOOK_S, min(ctx.clock.monotonic() - began, KEEP_S / 6)))


async def _saves_soon(ctx: Context, job: Job) -> bool:
    """Return whether a step that is saved is near; also where that is not known."""
    try:
        return (await next_save(ctx, job)).is_soon
    except HoldfastError:
        return True


class AtBoundary(Frozen):
    """All ranks wait at one boundary."""

    step: int
    copied: bool
    """Whether the machine that joins has the state of that step already; else it comes from the peer."""
    at: float
    """When the last of them completed it."""
    step_s: float = 0.0
    """How long a step takes, about."""


async def hold_for_move(ctx: Context, job: Job, leaves: str, joins: str) -> AtBoundary:
    """Hold all ranks at one boundary whose very step is saved by all, and mirrored; as :func:`hold_saved`."""

    async def saved(step: int) -> AtBoundary | None:
        return await _wait_saved(ctx, job, leaves, joins, step)

    return await hold_saved(ctx, job, saved)


async def _wait_saved(ctx: Context, job: Job, leaves: str, joins: str, step: int) -> AtBoundary | None:
    """Wait, bounded, until all have saved ``step``, and the machine that joins has it; None: some have not."""
    (joining,), saved = ctx.ledger.machines_named([joins]), SavedStep(ctx, job, step)
    moving = set(job.ranks_of(leaves)) if job.spec.checkpoint.first_tier is FirstTier.MEMORY else set()
    until = ctx.clock.monotonic() + ctx.policy.planned_move.copy_s
    while True:
        there = (await saved.look([joining]))[joins]
        copied = isinstance(there, AgentState) and bool(moving) and moving <= saved.ranks_in([there])
        over = ctx.clock.monotonic() >= until or not moving or isinstance(there, HoldfastError)
        if saved.is_whole and (copied or over):
            return _held(step, copied, saved.states.values(), job, ctx.clock.now())
        if ctx.clock.monotonic() >= until:
            return None
        await ctx.clock.sleep(0.01)


def _held(step: int, copied: bool, states: Iterable[AgentState], job: Job, now: float) -> AtBoundary:
    ranks = [rank for state in states for run in state.jobs if run.job == job.name for rank in run.ranks]
    at = max((rank.step_at for rank in ranks), default=now)
    # By the machines' clock, which may be off.
    at = at if now - _LONGEST_HOLD_S < at <= now else now
    return AtBoundary(
        step=step, copied=copied, at=at, step_s=max((rank.step_s for rank in ranks), default=0.0)
    )

"""Step: stop the ranks of a broken epoch everywhere, and fence it so that nothing of it can act again."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from prefect import task
from prefect.logging import get_run_logger

from holdfast.errors import (
    LimitError,
    RefusedError,
    UnavailableError,
    UnknownError,
)
from holdfast.models.job import Job
from holdfast.models.missing import Missing
from holdfast.operations import pause as stopping
from holdfast.operations.context import Context
from holdfast.operations.hold import LONGEST_HOLD_S, LOOK_S, hold_ranks, hold_saved, next_save
from holdfast.operations.saved_step import SavedStep
from holdfast.policies.diagnose import domains
from holdfast.policies.join_names import join_names
from holdfast.tasks.recovery_context import RecoveryContext

SAVED_S = 1.0
"""Longest wait for the shards of a boundary's step, once all ranks wait there."""


@task(task_run_name="pause {case.job}")
async def pause(case: RecoveryContext) -> tuple[str, ...]:
    """Stop and fence the broken epoch; return the machines that did not answer.

    Their ranks may still run: they must be evicted before the job goes on (``resume`` refuses otherwise).

    Raises:
        LimitError: more of them than may be evicted at once do not answer: it may be our own network. Or several that
            share a switch or rack, for the first time.
    """
    broken = stopping.Broken(
        job=case.job,
        epoch=case.broken_epoch,
        incident_id=case.incident_id,
        incident_class=case.incident_class,
        again=case.again,
        last_good_step=case.last_good_step,
        given_up=case.accused,
    )

    async def act() -> dict[str, Any]:
        return stopping.result(case.ctx, broken, await stopping.stop_epoch(case.ctx, case.ledger, broken))

    done = await case.once("pause", case.life, stopping.intent(case.ctx, broken), act)
    unreachable = tuple(done["unreachable"])
    if unreachable:
        get_run_logger().warning("no answer from %s", join_names(unreachable))
    silent = done.get("silent", ())
    _must_be_few(case, silent)
    before = {
        name
        for earlier in case.done("pause")
        if earlier.key != f"pause:{case.life}"
        for name in (earlier.result or {}).get("silent", ())
    }
    _must_not_share(case, silent, before)
    return unreachable


def _must_be_few(case: RecoveryContext, silent: Sequence[str]) -> None:
    """Refuse to go on when many machines are silent: a machine that refuses is dead; of many silent ones, few are."""
    limit = case.ctx.policy.aggregate.limit(len(case.job_now().machines))
    if len(silent) > limit:
        raise LimitError(
            f"{join_names(silent)} do not answer, more than the over-eviction limit of {limit}: the network between "
            "them and the playbook worker may be cut. Nothing was evicted; fix the network, then `holdfast resume`",
            Missing.CONTACT,
        )


def _must_not_share(case: RecoveryContext, silent: Sequence[str], before: Collection[str]) -> None:
    """Refuse to evict silent machines at once that share a switch or rack: most that go away are soon back.

    Those that did not answer at an earlier pause of the incident either (``before``) are waited for no longer.
    """
    if len(silent) < 2 or set(silent) <= set(before):
        return
    policy = case.ctx.policy
    known = domains.known(case.machines_now(), policy)
    shared = domains.shared(silent, known, policy.detect.network.switch_share)
    if shared and frozenset[str]().union(*shared.values()).issuperset(silent):
        raise LimitError(
            f"{join_names(silent)} do not answer, and share {join_names(list(shared))}: it may be what they share. "
            "Nothing was evicted; who does not answer at the next attempt is",
            Missing.CONTACT,
        )


@task(task_run_name="hold {case.job} at a step boundary")
async def hold_at_boundary(case: RecoveryContext) -> None:
    """Let every rank finish its step and save it, so that nothing has to be computed again."""
    if case.stands:
        return

    job = case.job_now()

    async def saved(step: int) -> int | None:
        return step if await _saved_by_all(case.ctx, job, step) else None

    async def act() -> dict[str, Any]:
        step: int | None
        try:
            # Where not every step is saved, the next one that is may be far away.
            if (following := await next_save(case.ctx, job)).is_far:
                step = await hold_ranks(case.ctx, job, 0, longest_s=LONGEST_HOLD_S)
            else:
                step = await hold_saved(case.ctx, job, saved, following=following)
        except (RefusedError, UnavailableError, UnknownError) as refused:
            # It still may be stopped: every step is in memory already. Unknown: an agent that restarted has no ranks.
            return {"held": False, "why": str(refused)}
        return {"held": True, "step": step}

    await case.once("hold", case.life, {}, act)


async def _saved_by_all(ctx: Context, job: Job, step: int) -> bool:
    """Wait, bounded, until the machines have every rank's shard of ``step``; return whether they have."""
    saved, until = SavedStep(ctx, job, step), ctx.clock.monotonic() + SAVED_S
    while True:
        await saved.look()
        if saved.is_whole:
            return True
        if ctx.clock.monotonic() >= until:
            return False
        await ctx.clock.sleep(LOOK_S)

"""The state to go on from: by what machines and S3 hold, what was left behind, who decides if none is left."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.errors import (
    LimitError,
    RefusedError,
    StoreAwayError,
    UnavailableError,
    UnknownError,
    WaitError,
)
from holdfast.models.agent import AgentState
from holdfast.models.checkpoint import Choice, RemoteCheckpoint, RestorePlan, Shard
from holdfast.models.job import FromScratch, Job
from holdfast.models.missing import Missing
from holdfast.operations.context import Context
from holdfast.policies.restore import from_zero, lineage, restore_plan
from holdfast.storage.checkpoints.remote import manifests
from holdfast.storage.ledger import Ledger


@dataclass(frozen=True)
class Search:
    """The inputs of a restore plan."""

    ctx: Context
    job: Job
    states: Sequence[AgentState]
    """The states that the job's machines hold."""
    bound: int | None = None
    """Newest step that may be restored; None: no bound."""
    refused: Sequence[str] = ()
    """The sources that were found damaged just before, in words."""
    waited_s: float = 0.0
    """How long the caller waited for S3 already."""
    from_scratch: FromScratch | None = None
    """Whether it starts from zero where no state is usable; None: by the job's setting, else the policy's."""

    @property
    def shards(self) -> list[Shard]:
        """Shards of the job, on any machine."""
        return [shard for state in self.states for shard in state.shards if shard.job == self.job.name]


async def plan(search: Search) -> RestorePlan:
    """Return the newest state that every rank can reach and that may be restored.

    Raises:
        WaitError: S3 does not answer, and no other source will do.
        StoreAwayError: nor did it within the policy's time.
        LimitError: no state is usable: a person decides.
    """
    made, error = await _made(search)
    decision = from_zero.decide(_facts(search, made, error), search.ctx.policy.restore)
    if decision.act is from_zero.Consequence.WAIT:
        raise WaitError(f"job {search.job.name}: {decision.summary}")
    if decision.act is from_zero.Consequence.ASK:
        raise (StoreAwayError if decision.unknown else LimitError)(decision.summary, Missing.STATE)
    return made.model_copy(update={"reasons": (*made.reasons, decision.why)}) if decision.why else made


async def by_hand(search: Search, choice: Choice) -> RestorePlan:
    """Plan a restore from what a person named: zero, or a saved step, even if there are reasons against it.

    Raises:
        RefusedError: the job's setting forbids a start from zero, or the step is nowhere complete.
        UnavailableError: S3 does not answer.
    """
    ctx, job = search.ctx, search.job
    if choice.from_scratch:
        setting = job.spec.checkpoint.from_scratch or ctx.policy.restore.from_scratch
        if setting is FromScratch.NEVER:
            raise RefusedError(
                f"job {job.name}: from_scratch is never, so it cannot start from zero manually either: name a step "
                f"(`holdfast resume {job.name} --step N`), or submit it under another name"
            )
        return RestorePlan(step=0, tier=None, reasons=("a person asked for a start from zero",))
    listed_now = await asyncio.to_thread(manifests.list_remote, ctx.store, job.name)
    wanted = [each.model_copy(update={"suspect": False}) for each in listed_now if each.step == choice.step]
    made = _choose(job, [shard for shard in search.shards if shard.step == choice.step], wanted)
    if made.tier is None:
        steps = sorted({each.step for each in listed_now} | {shard.step for shard in search.shards})
        raise RefusedError(
            f"job {job.name}: step {choice.step} is nowhere complete ({'; '.join(made.reasons)}); "
            f"there are steps {', '.join(map(str, steps)) or 'none'}"
        )
    return made.model_copy(update={"reasons": (f"a person asked for step {choice.step}", *made.reasons)})


async def give_up_state(
    ctx: Context, job: str, step: int, why: str, ledger: Ledger | None = None
) -> list[int]:
    """Have no further plan name the state of ``step`` that is there now, or one saved after it; may be repeated.

    The ledger keeps it, for shards in memory and for uploads that end only later; in S3 it is marked as far as that
    answers. What an older step is restored over has no value any more, so nothing is lost by "or after it".

    Args:
        ctx: services.
        job: whose state it is.
        step: its step.
        why: for people.
        ledger: one that refuses to write once the caller may not act on the job any more; None: the plain one.

    Returns:
        Steps of the checkpoints in S3 that were marked.

    Raises:
        StaleError: another run acts on the job; nothing was marked.
    """
    ledger = ledger or ctx.ledger
    marked = {each.key: each for each in ledger.mark_suspect(job, step, why) if each.step == step}
    try:
        if not marked:  # the plan was made of what the bucket has: the ledger may have missed a manifest
            listed_now = await asyncio.to_thread(manifests.list_remote, ctx.store, job)
            marked = {each.key: each for each in listed_now if each.step == step}
        for each in marked.values():
            await asyncio.to_thread(manifests.mark_suspect, ctx.store, each, why)
    except UnavailableError:
        pass  # the ledger's mark already keeps it from being restored
    return sorted(each.step for each in marked.values())


async def _made(search: Search) -> tuple[RestorePlan, str]:
    """Return the plan by the ledger's record of S3, else by the bucket; and why S3 does not answer, if it matters."""
    ctx, job = search.ctx, search.job
    while True:
        made = _trusted_only(search, ctx.ledger.checkpoints(job.name, include_suspect=False))
        try:
            if made.tier is None and job.epoch > 0:
                # Before a start from scratch the bucket itself is asked: the ledger may have missed a manifest.
                listed_now = await asyncio.to_thread(manifests.list_remote, ctx.store, job.name)
                return _trusted_only(search, listed_now), ""
            if made.remote is None or not from_zero.reads_store(made):
                return made, ""
            manifest = manifests.object_key(made.remote.key, manifests.MANIFEST)
            if await asyncio.to_thread(ctx.store.exists, manifest):
                return made, ""
        except (UnavailableError, UnknownError) as error:
            return made, str(error)
        ctx.ledger.refuse_checkpoint(made.remote, "its manifest is not in S3 any more")


def _trusted_only(search: Search, remotes: Sequence[RemoteCheckpoint]) -> RestorePlan:
    """Without what another history made, and what was left behind."""
    ledger, job, shards = search.ctx.ledger, search.job, search.shards
    epochs, suspicions = ledger.epochs(job.name), ledger.suspicions(job.name)

    def bad(epoch: int, step: int) -> bool:
        return any(each.covers(epoch, step) for each in suspicions)

    dropped = {each.step for each in shards if bad(each.epoch, each.step)}
    dropped |= {each.step for each in remotes if bad(each.epoch, each.step)}
    words = [f"step {max(dropped)} is suspect"] if dropped else []
    return _choose(
        job,
        [each for each in lineage.valid(shards, epochs) if not bad(each.epoch, each.step)],
        [each for each in lineage.valid(remotes, epochs) if not bad(each.epoch, each.step)],
        search.bound,
        (*search.refused, *words),
    )


def _choose(
    job: Job,
    shards: Sequence[Shard],
    remotes: Sequence[RemoteCheckpoint],
    bound: int | None = None,
    refused: Sequence[str] = (),
) -> RestorePlan:
    machine_of = {rank: job.machine_of(rank) for rank in range(job.spec.world_size)}
    policy = job.spec.checkpoint
    two_each = policy.buffers > 1 and (policy.peer_buffers > 1 or not policy.peer)
    return restore_plan.choose(
        shards, remotes, job.spec.world_size, machine_of, bound, refused=refused, other_sizes=two_each
    )


def _facts(search: Search, made: RestorePlan, error: str) -> from_zero.PlanFacts:
    ledger, job = search.ctx.ledger, search.job
    epochs = ledger.epochs(job.name)
    before = epochs[-1].machines if epochs else ()
    return from_zero.PlanFacts(
        job=job.name,
        reached=ledger.max_step(job.name),
        saved=ledger.ever_saved(job.name) or made.tier is not None or _saved_since(search, made),
        plan=made,
        store_error=error,
        gone=tuple(name for name in before if name not in job.machines),
        waited_s=search.waited_s,
        from_scratch=search.from_scratch or job.spec.checkpoint.from_scratch,
    )


def _saved_since(search: Search, made: RestorePlan) -> bool:
    """Some machine or S3 still holds something of the present submission, though nothing whole."""
    since = search.job.submitted_at
    mine = {each.epoch for each in search.ctx.ledger.epochs(search.job.name) if each.opened_at >= since}
    held = {shard.epoch for shard in search.shards} | {each.epoch for each in made.skipped}
    return bool(mine & held)

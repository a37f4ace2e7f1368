"""Step: start the next epoch from the newest state that every rank can reach, and see it make progress."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from prefect import task
from prefect.logging import get_run_logger

from holdfast.errors import CheckpointError, RecoveryError, RefusedError, UnavailableError
from holdfast.models.agent import FetchShard, OpenRendezvous, PrepareCode, RankPhase, Start
from holdfast.models.base import Frozen
from holdfast.models.checkpoint import RemoteCheckpoint, RestoreOrder, RestorePlan, Tier
from holdfast.models.job import Job, JobState
from holdfast.models.machine import Machine, MachineState
from holdfast.policies import lineage, placement, restore_plan
from holdfast.storage import remote
from holdfast.tasks import fleet
from holdfast.tasks.case import Case
from holdfast.tasks.context import Context, context
from holdfast.tasks.pause import fence
from holdfast.tasks.standby import make_ready

# A job submitted under a name that was used before does not inherit that one's state.
_SCRATCH = RestorePlan(step=0, tier=None, reasons=("submitted anew: from scratch",))


class Launched(Frozen):
    """What was started."""

    epoch: int
    step: int
    """The step that was restored; 0 from scratch."""
    tier: Tier | None
    reasons: tuple[str, ...]

    @property
    def said(self) -> str:
        """In words."""
        return f"epoch {self.epoch} from step {self.step}"


async def resume(case: Case) -> Launched:
    """Start the next epoch and verify it: every rank completes a step.

    Raises:
        RecoveryError: a rank failed again, or the first step did not come in time.
    """
    launched = await start(case)
    await verify(case, launched.epoch)
    return launched


@task(task_run_name="start {case.job}")
async def start(case: Case) -> Launched:
    """Choose the state to restore, move it to where it is needed, start all ranks."""

    async def act() -> dict[str, Any]:
        reason = f"{case.incident_class} {case.incident_id}"
        launched = await launch(case.job, reason, incident_id=case.incident_id, bound=case.last_good_step)
        return launched.model_dump(mode="json")

    done = await case.once("start", f"after-e{case.broken_epoch}", {"bound": case.last_good_step}, act)
    launched = Launched.model_validate(done)
    get_run_logger().info(
        "epoch %d from step %d (%s)", launched.epoch, launched.step, "; ".join(launched.reasons)
    )
    return launched


@task(task_run_name="verify epoch {epoch}")
async def verify(case: Case, epoch: int) -> None:
    """Wait until every rank has completed a step of ``epoch``.

    Raises:
        RecoveryError: a rank failed, or no first step came within the policy's time.
    """

    async def act() -> dict[str, Any]:
        await first_steps(case.ctx, case.job, epoch, case.ctx.policy.recovery.first_step_timeout_s)
        return {"epoch": epoch}

    await case.once("verify", f"e{epoch}", {"epoch": epoch}, act)
    # Not part of the act: an attempt that finds it done has taken the job up as recovering again.
    if case.job_now().state is JobState.RECOVERING:
        case.ctx.ledger.set_job(case.job, state=JobState.RUNNING)


async def launch(
    job_name: str, reason: str, *, incident_id: str | None = None, bound: int | None = None
) -> Launched:
    """Start the next epoch of a job on its machines (for a new job: on standbys); does not wait for steps.

    Args:
        job_name: the job.
        reason: why, for the record.
        incident_id: the incident that this recovers.
        bound: newest step that may be restored; None: no bound.

    Raises:
        NoStandbyError: a new job wants more machines than stand by.
        UnavailableError: a machine of the job does not answer; nothing was started.
        CheckpointError: the chosen state could not be brought to its ranks; nothing was started.
    """
    ctx = context()
    job = ctx.ledger.job(job_name)
    new = not job.machines
    job = _with_machines(ctx, job)
    machines = [ctx.ledger.machine(name) for name in job.machines]
    if out := [m.name for m in machines if m.state is not MachineState.ACTIVE]:
        raise RefusedError(f"job {job_name}: machines {', '.join(out)} are out of service; swap them first")
    # An attempt that was killed half way may have started some ranks: nothing of it may go on.
    if unreachable := await fence(ctx, machines, job_name, job.epoch):
        raise UnavailableError(f"job {job_name}: no answer from {', '.join(unreachable)}")
    job = _merge_pending_update(ctx, job)
    plan = _SCRATCH if new else await _plan(ctx, job, machines, bound)
    epoch = ctx.ledger.next_epoch(job_name)
    ctx.ledger.open_epoch(
        job_name,
        epoch,
        plan.step,
        job.code_version,
        job.machines,
        reason,
        incident_id=incident_id,
        at=ctx.clock.now(),
    )
    await _start_ranks(ctx, job, epoch, machines, plan)
    if incident_id is None:
        ctx.ledger.set_job(job_name, state=JobState.RUNNING)
        await make_ready(ctx, job)
    return Launched(epoch=epoch, step=plan.step, tier=plan.tier, reasons=plan.reasons)


async def first_steps(ctx: Context, job_name: str, epoch: int, timeout_s: float) -> None:
    """Wait until every rank of ``epoch`` has completed a step.

    Raises:
        RecoveryError: a rank failed, or time ran out.
    """
    job = ctx.ledger.job(job_name)
    machines = [ctx.ledger.machine(name) for name in job.machines]
    deadline = ctx.clock.now() + timeout_s
    while ctx.clock.now() < deadline:
        answers = await fleet.ask(ctx, machines, lambda agent, _: agent.state(timeout_s=2.0))
        ranks = [
            rank
            for state in fleet.answered(answers).values()
            for run in state.jobs
            if run.job == job_name and run.epoch == epoch
            for rank in run.ranks
        ]
        if fallen := [rank for rank in ranks if rank.phase is RankPhase.EXITED and rank.exit_code]:
            raise RecoveryError(
                f"epoch {epoch}: rank {fallen[0].rank} ended with status {fallen[0].exit_code} again"
            )
        if len(ranks) == job.spec.world_size and all(
            rank.steps_done > 0 or rank.exit_code == 0 for rank in ranks
        ):
            return
        if ctx.ledger.job(job_name).state is JobState.STOPPED:
            raise RefusedError(f"job {job_name} was stopped")
        await asyncio.sleep(0.05)
    raise RecoveryError(f"epoch {epoch}: no step from every rank within {timeout_s:.0f} s")


def _with_machines(ctx: Context, job: Job) -> Job:
    """A new job gets its machines from the standby pool."""
    if job.machines:
        return job
    claimed = ctx.ledger.claim_standbys(job.name, job.spec.machines)
    return ctx.ledger.set_job(job.name, machines=tuple(machine.name for machine in claimed))


def _merge_pending_update(ctx: Context, job: Job) -> Job:
    """A code update that was not urgent rides on this restart."""
    version = ctx.ledger.pending_version(job.name)
    if version is None:
        return job
    updated = ctx.ledger.set_job(job.name, code_version=version)
    ctx.ledger.set_pending_version(job.name, None)
    return updated


async def _plan(ctx: Context, job: Job, machines: Sequence[Machine], bound: int | None) -> RestorePlan:
    answers = await fleet.ask(ctx, machines, lambda agent, _: agent.state(timeout_s=3.0))
    states = fleet.all_or_raise(answers)
    epochs = ctx.ledger.epochs(job.name)
    shards = [shard for state in states.values() for shard in state.shards if shard.job == job.name]
    machine_of = {rank: job.machine_of(rank) for rank in range(job.spec.world_size)}

    def choose(remotes: Sequence[RemoteCheckpoint]) -> RestorePlan:
        return restore_plan.choose(
            lineage.valid(shards, epochs),
            lineage.valid(remotes, epochs),
            job.spec.world_size,
            machine_of,
            bound,
        )

    plan = choose(ctx.ledger.checkpoints(job.name, include_suspect=False))
    if plan.tier is None and job.epoch > 0:
        # Before a start from scratch the bucket itself is asked: the ledger may have missed a manifest.
        plan = choose(await asyncio.to_thread(remote.list_remote, ctx.store, job.name))
    return plan


async def _start_ranks(
    ctx: Context, job: Job, epoch: int, machines: Sequence[Machine], plan: RestorePlan
) -> None:
    by_name = {machine.name: machine for machine in machines}
    backup = placement.backups(len(machines), job.spec.ranks_per_machine, job.spec.parallelism)
    first = machines[0]
    rendezvous, *_ = await asyncio.gather(
        ctx.agent(first).open_rendezvous(
            OpenRendezvous(
                job=job.name, epoch=epoch, incarnation=first.incarnation, world_size=job.spec.world_size
            )
        ),
        _fetch_missing(ctx, job, epoch, by_name, plan),
        _prepare_code(ctx, job, machines),
    )

    def order(machine: Machine) -> Start:
        slot = job.machines.index(machine.name)
        ranks = tuple(job.ranks_of(machine.name))
        peer = machines[backup.mapping[slot]] if job.spec.checkpoint.peer and len(machines) > 1 else None
        return Start(
            job=job.name,
            epoch=epoch,
            incarnation=machine.incarnation,
            script=job.spec.script,
            args=job.spec.args,
            env=job.spec.env,
            code_version=job.code_version,
            ranks=ranks,
            world_size=job.spec.world_size,
            rendezvous=rendezvous,
            restore=RestoreOrder(
                step=plan.step,
                tier=plan.tier,
                sources=tuple(s for s in plan.sources if s.rank in ranks),
                key=plan.remote.key if plan.remote else "",
            ),
            peer=peer.data_address if peer else "",
            peer_machine=peer.name if peer else "",
            s3_every_steps=job.spec.checkpoint.s3_every_steps,
        )

    fleet.all_or_raise(await fleet.ask(ctx, machines, lambda agent, machine: agent.start(order(machine))))


async def _fetch_missing(
    ctx: Context, job: Job, epoch: int, machines: dict[str, Machine], plan: RestorePlan
) -> None:
    """Shards whose rank runs elsewhere now move there, machine to machine, all at once."""

    async def fetch(rank: int, source: str) -> None:
        here = machines[job.machine_of(rank)]
        await ctx.agent(here).fetch_shard(
            FetchShard(
                job=job.name,
                epoch=epoch,
                incarnation=here.incarnation,
                rank=rank,
                step=plan.step,
                source=ctx.ledger.machine(source).data_address,
            )
        )

    moves = [s for s in plan.sources if s.machine != job.machine_of(s.rank)]
    try:
        await asyncio.gather(*(fetch(move.rank, move.machine) for move in moves))
    except UnavailableError as error:
        raise CheckpointError(f"job {job.name} step {plan.step}: {error}") from error


async def _prepare_code(ctx: Context, job: Job, machines: Sequence[Machine]) -> None:
    answers = await fleet.ask(
        ctx,
        machines,
        lambda agent, machine: agent.prepare_code(
            PrepareCode(job=job.name, version=job.code_version, incarnation=machine.incarnation)
        ),
    )
    fleet.all_or_raise(answers)

"""Start a job's next epoch from the newest state that every rank can reach."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence

from holdfast.agent.client import AgentClient
from holdfast.errors import (
    AheadError,
    CheckpointError,
    RefusedError,
    StaleError,
    UnavailableError,
)
from holdfast.models.agent import AgentState, OpenRendezvous, RankState, Rendezvous, Settled, Start
from holdfast.models.base import Frozen
from holdfast.models.checkpoint import Choice, RestoreOrder, RestorePlan, ShardSource, Tier
from holdfast.models.job import FromScratch, Job
from holdfast.models.machine import Machine, MachineState
from holdfast.operations import flaps, fleet, restore, start_from
from holdfast.operations.context import Context
from holdfast.operations.fence import fence
from holdfast.operations.provision import make_ready
from holdfast.operations.resize import unplaced
from holdfast.policies.join_names import join_names
from holdfast.policies.pool import topology
from holdfast.policies.restore import kept_processes, placement, restore_plan
from holdfast.storage.ledger import Ledger

_log = logging.getLogger(__name__)

# A job submitted under a name that was used before does not inherit that one's state.
_SCRATCH = RestorePlan(step=0, tier=None, reasons=("submitted again: from scratch",))


_MOST_REFUSED = 4
"""Plans in a row whose sources all turned out damaged or gone, before a recovery is given up."""


MakePlan = Callable[[Job, Sequence[AgentState]], Awaitable[RestorePlan]]
"""Chooses by what the machines hold."""


class Launched(Frozen):
    """The epoch that was started."""

    epoch: int
    step: int
    """The step that was restored; 0 from scratch."""
    tier: Tier | None
    reasons: tuple[str, ...]
    restore: tuple[str, ...] = ()
    """Which newer steps were skipped, where each rank's state came from, and why processes are new, with reasons."""

    unloadable: tuple[str, ...] = ()
    """Newer states that the ranks could not load, and doubts about the one that was taken, in words."""
    passed_over: tuple[str, ...] = ()
    """Newer states, and cheaper sources of this one, that were refused: damaged, or they did not come; in words."""
    kept: int = 0
    """Ranks that went on in their process."""
    ranks: int = 0

    @property
    def summary(self) -> str:
        """In words."""
        why = f" ({self.reasons[-1]})" if self.tier is None and self.reasons else ""
        kept = f", {self.kept} of {self.ranks} ranks in their processes" if self.kept else ""
        more = f" (and {len(self.passed_over) - 1} more)" if len(self.passed_over) > 1 else ""
        passed = [f"refused: {self.passed_over[0][:300]}{more}"] if self.passed_over else []
        parts = [*self.unloadable, f"epoch {self.epoch} from step {self.step}{why}{kept}", *passed]
        return "; ".join(parts)

    @property
    def said(self) -> str:
        """The former name of :attr:`summary`, for playbooks of other packages until the next release."""
        return self.summary


async def launch(
    ctx: Context,
    job_name: str,
    reason: str,
    *,
    incident_id: str | None = None,
    bound: int | None = None,
    choice: Choice | None = None,
    from_scratch: FromScratch | None = None,
    waited_s: float = 0.0,
    ledger: Ledger | None = None,
    ahead: Rendezvous | None = None,
    settled: Mapping[str, Settled] | None = None,
    keep_s: float = 0.0,
    leaving: Sequence[str] = (),
) -> Launched:
    """Start the next epoch of a job on its machines (for a new job: on standbys); do not wait for steps.

    When every source of some rank's state is refused, the next older step is taken, in a further epoch.

    Args:
        ctx: services.
        job_name: the job.
        reason: why, for the record.
        incident_id: the incident that this recovers.
        bound: newest step that may be restored; None: no bound.
        choice: the state that a person wants it to be restored from; None: the newest usable state.
        from_scratch: whether it starts from zero where no state is usable; None: by the job's setting.
        waited_s: how long the caller waited for S3 already.
        ledger: where it is recorded; None: the site's, even if another run acts on the job.
        ahead: where ranks of the next epoch that were started ahead have met; ranks are forked where they have not.
        keep_s: how long processes that may be kept have been left to wait for this; 0: all are started again.
        leaving: machines that gave up their slot just now and may hold its state.
        settled: machines that the caller saw without ranks of the newest epoch just now.

    Raises:
        StaleError: another run acts on the job, or the job was stopped meanwhile; nothing runs.
        WaitError: S3 does not answer, and no other source will do; nothing was started.
        LimitError: no saved state is usable: a person decides; nothing was started.
        NoStandbyError: a new job wants more machines than stand by.
        UnavailableError: a machine of the job does not answer; nothing was started.
        CheckpointError: the chosen state could not be brought to its ranks; nothing was started.
    """
    refused: list[str] = []

    async def plan(job: Job, states: Sequence[AgentState]) -> RestorePlan:
        if new:
            return await start_from.begun(ctx, job, _SCRATCH)
        search = restore.Search(ctx, job, states, bound, refused, waited_s, from_scratch)
        made = await (restore.by_hand(search, choice) if choice else restore.plan(search))
        return await start_from.begun(ctx, job, made)

    ledger = ledger or ctx.ledger
    job = ledger.job(job_name)
    new = _is_new(ledger, job) and (choice is None or not job.machines)
    while True:
        try:
            launched = await _launch(
                ctx,
                ledger,
                job_name,
                reason,
                incident_id=incident_id,
                make_plan=plan,
                ahead=ahead,
                known=settled or {},
                keep_s=0.0 if refused else keep_s,
                left=leaving,
                ended_at=job.done_at,
            )
            return launched.model_copy(update={"passed_over": tuple(refused)})
        except AheadError as error:
            _log.warning("%s; ranks are forked as ever", error)
            ahead = settled = None
        except CheckpointError as error:
            ahead = settled = None
            refused.append(str(error))
            if len(refused) > _MOST_REFUSED:
                raise


async def _launch(
    ctx: Context,
    ledger: Ledger,
    job_name: str,
    reason: str,
    *,
    incident_id: str | None,
    make_plan: MakePlan,
    ahead: Rendezvous | None,
    known: Mapping[str, Settled],
    keep_s: float,
    left: Sequence[str],
    ended_at: float | None,
) -> Launched:
    job = _with_machines(ctx, ledger.job(job_name))
    machines = ledger.machines_named(job.machines)
    if out := [m.name for m in machines if m.state is not MachineState.ACTIVE]:
        raise RefusedError(f"job {job_name}: machines {join_names(out)} are out of service; swap them first")
    first = machines[0]
    meet = OpenRendezvous(
        job=job_name, epoch=job.epoch + 1, incarnation=first.incarnation, world_size=job.spec.world_size
    )
    gone = [name for name in left if name not in job.machines]
    # A move that something else came before may have left a machine, whose memory has what its slot's next one needs.
    draining = ledger.machines(state=MachineState.DRAINING, job=job_name, role="")
    left_before = [each.name for each in draining if each.name not in (*job.machines, *left)]
    unknown = [name for name in (*gone, *left_before) if name not in known]
    meeting = _there(ahead) if ahead else ctx.agent(first).open_rendezvous(meet)
    unseen = [machine for machine in machines if machine.name not in known]
    found, rendezvous, leaving = await asyncio.gather(
        _settle(ctx, unseen, job, keep_s), meeting, _settle_leaving(ctx, ledger, job, unknown)
    )
    settled = {machine.name: found.get(machine.name) or known[machine.name] for machine in machines}
    job = _merge_pending_update(ledger, job)
    seen = [*settled.values(), *(known[name] for name in gone if name in known)]
    plan = await make_plan(job, [*(each.state for each in seen), *leaving])
    # A person may have stopped it since, and its machines may be others' by now.
    epoch = ledger.next_epoch(job_name, unless_ended=incident_id is not None)
    if epoch != meet.epoch:
        raise RefusedError(f"job {job_name}: epoch {epoch - 1} was started by another process")
    ledger.open_epoch(
        job_name,
        epoch,
        plan.step,
        job.code_version,
        job.machines,
        reason,
        incident_id=incident_id,
        at=ctx.clock.now(),
    )
    await _prepare_code(ctx, job, machines, settled)
    orders = start_orders(ctx, ledger.job(job_name), epoch, machines, plan, rendezvous)
    started = await _start_ranks(ctx, machines, orders, ahead=ahead is not None, keep=keep_s > 0)
    if incident_id is None:
        await _record_running(ctx, ledger, job_name, machines, epoch, ended_at)
        await make_ready(ctx, job)
    new = kept_processes.by_reason((rank.rank, rank.why_new) for rank in started if rank.why_new)
    explained = (*restore_plan.explain(plan), *kept_processes.describe(new))
    return Launched(
        epoch=epoch,
        step=plan.step,
        tier=plan.tier,
        reasons=plan.reasons,
        restore=explained,
        kept=sum(rank.kept for rank in started),
        ranks=len(started),
    )


async def _record_running(  # noqa: PLR0917
    ctx: Context,
    ledger: Ledger,
    job_name: str,
    machines: list[Machine],
    epoch: int,
    ended_at: float | None,
) -> None:
    """Record that the job trains, unless a person stopped it while it was being started: then end its ranks.

    The stop may have given the machines back before the order to start came to them.

    Raises:
        StaleError: it was stopped, or lost its machines to a stop before.
    """
    try:
        ledger.set_running(job_name, epoch, ended_at)
    except StaleError:
        await fence(ctx, machines, job_name, epoch)
        raise


def _is_new(ledger: Ledger, job: Job) -> bool:
    """Return whether it was never launched; one that was scaled to zero holds no machine either, and has a state."""
    if not ledger.was_launched(job.name):
        return True
    return not job.machines and not ledger.max_step(job.name) and not ledger.ever_saved(job.name)


def _with_machines(ctx: Context, job: Job) -> Job:
    """Give a new job its machines from the standby pool.

    Raises:
        RefusedError: it is not new: it was scaled to zero.
    """
    if job.machines:
        return job
    if not _is_new(ctx.ledger, job):
        raise RefusedError(f"job {job.name} holds no machine: `holdfast scale {job.name} N` gives it some")
    ledger, flapping = ctx.ledger, flaps.of_the_pool(ctx.ledger, ctx.clock, ctx.policy)
    claimed = ledger.claim_standbys(job.name, job.spec.machines, flapping)
    return ledger.set_job(job.name, machines=tuple(machine.name for machine in claimed))


def _merge_pending_update(ledger: Ledger, job: Job) -> Job:
    """Apply a pending code update, which was not urgent, with this restart."""
    version = ledger.pending_version(job.name)
    if version is None:
        return job
    updated = ledger.set_job(job.name, code_version=version)
    ledger.set_pending_version(job.name, None)
    return updated


async def _settle(ctx: Context, machines: Sequence[Machine], job: Job, keep_s: float) -> dict[str, Settled]:
    """Return the state of the machines once nothing of the job runs there.

    An attempt that was killed half way may have started some ranks: none of them may go on.
    """
    answers = await fleet.settle(ctx, machines, job.name, job.epoch, keep_s=keep_s)
    if unreachable := fleet.lost(answers):
        raise UnavailableError(f"job {job.name}: no answer from {join_names(unreachable)}")
    return fleet.all_or_raise(answers)


async def _settle_leaving(ctx: Context, ledger: Ledger, job: Job, left: Sequence[str]) -> list[AgentState]:
    """Return the states of ``left``, and of machines that serve the job without a slot: they may hold its shards."""
    machines = [*unplaced(ledger, job), *ledger.machines_named(list(left))]
    settled = fleet.answered(await fleet.settle(ctx, machines, job.name, job.epoch, given_up=left))
    return [each.state for each in settled.values()]


async def _prepare_code(
    ctx: Context, job: Job, machines: Sequence[Machine], settled: Mapping[str, Settled]
) -> None:
    """Put the job's code on all machines before any rank starts; those that reported that they have it are skipped."""
    lacking = [machine for machine in machines if job.code_version not in settled[machine.name].code]
    fleet.all_or_raise(await fleet.prepare_code(ctx, job, job.code_version, lacking))


async def _there(rendezvous: Rendezvous) -> Rendezvous:
    return rendezvous


def start_orders(  # noqa: PLR0917
    ctx: Context,
    job: Job,
    epoch: int,
    machines: Sequence[Machine],
    plan: RestorePlan,
    rendezvous: Rendezvous,
) -> dict[str, Start]:
    """Return the order for each of a job's machines, by slot, to start its ranks of ``epoch``."""
    job = job.model_copy(update={"machines": tuple(machine.name for machine in machines)})
    where = topology.locations(machines, ctx.policy)
    backup = placement.backups(len(machines), job.spec.ranks_per_machine, job.spec.parallelism, where)
    if backup.in_domain and job.spec.checkpoint.peer:
        _log.warning("job %s: %s; when that is lost, S3 has the state", job.name, backup.reason)
    kept_by = {peer: own for own, peer in backup.mapping.items()} if job.spec.checkpoint.peer else {}
    holders = ctx.ledger.machines_named(list(restore_plan.machines(plan)))
    address_of = {machine.name: machine.data_address for machine in holders}

    def by_machine(sources: Sequence[ShardSource]) -> dict[str, list[ShardSource]]:
        found = defaultdict(list)
        for each in sources:
            address = address_of.get(each.machine, "")
            found[job.machine_of(each.read_by)].append(each.model_copy(update={"address": address}))
        return found

    sources, fallbacks = by_machine(plan.sources), by_machine(plan.fallbacks)

    skip_steps = ctx.ledger.skipped_steps(job.name)

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
                epoch=plan.epoch,
                tier=plan.tier,
                sources=tuple(sources[machine.name]),
                fallbacks=tuple(fallbacks[machine.name]),
                key=plan.remote.key if plan.remote else "",
                start_from=plan.start_from,
                saved_by=plan.saved_by,
            ),
            peer=peer.data_address if peer else "",
            peer_machine=peer.name if peer else "",
            keeps_ranks=tuple(job.ranks_of(machines[kept_by[slot]].name)) if slot in kept_by else (),
            s3_every_steps=job.spec.checkpoint.s3_every_steps,
            disk_every_steps=job.spec.checkpoint.disk_every_steps,
            skip_steps=skip_steps,
            memory_every_steps=job.spec.checkpoint.memory_every_steps,
            max_overhead=job.spec.checkpoint.max_overhead,
            copies=job.spec.checkpoint.copies(len(machines)),
            first_tier=job.spec.checkpoint.first_tier,
            retention=job.spec.checkpoint.retention,
            stop_grace_s=job.spec.stop_grace_s,
        )

    return {machine.name: order(machine) for machine in machines}


async def _start_ranks(
    ctx: Context, machines: Sequence[Machine], orders: Mapping[str, Start], *, ahead: bool, keep: bool
) -> list[RankState]:
    """Have all ranks started; with ``ahead`` only by those that wait already.

    Raises:
        AheadError: on some machine they do not wait (any more).
    """

    def start(agent: AgentClient, machine: Machine) -> Awaitable[list[RankState]]:
        switch_s = ctx.policy.keep_processes.switch_s
        update = {"ahead": ahead, "keep": keep, "switch_s": switch_s}
        return agent.start(orders[machine.name].model_copy(update=update))

    answers = await fleet.ask(ctx, machines, start)
    return [rank for ranks in fleet.all_or_raise(answers).values() for rank in ranks]

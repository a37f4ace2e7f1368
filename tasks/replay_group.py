"""One group of a replay: start it on its machines, wait for its results, end it."""

from __future__ import annotations

import asyncio

from prefect.logging import get_run_logger

from holdfast.errors import HoldfastError
from holdfast.models.agent import Fence, OpenRendezvous, RankResult, Replay, Start
from holdfast.models.base import Frozen
from holdfast.models.checkpoint import RemoteCheckpoint, RestoreOrder, Tier
from holdfast.models.job import Job
from holdfast.models.machine import Machine
from holdfast.operations import fleet
from holdfast.policies.diagnose import unplayed
from holdfast.policies.diagnose.agreement import GroupResults
from holdfast.policies.restore import lineage
from holdfast.tasks.recovery_context import RecoveryContext

SILENT_S = 30.0
"""A machine that is busy with a replay may answer nothing for so long."""


class ReplayEnd(Frozen):
    """The end of a group's replay."""

    ok: bool
    """Every rank ran its steps, and loss and gradients stayed finite."""
    played: GroupResults
    no_evidence: str = ""
    """Why its failure is no evidence; empty: it is, or it did not fail."""


async def play(
    case: RecoveryContext, group: str, machines: list[Machine], checkpoint: RemoteCheckpoint | None
) -> ReplayEnd:
    """Run a few steps from ``checkpoint`` (None: from scratch) on ``machines``; return the results."""
    policy, name = case.ctx.policy.replay, f"{case.job}~{group}"
    try:
        await _start(case, name, group, machines, checkpoint)
        results = await asyncio.wait_for(_results(case, name, machines), policy.timeout_s)
    except (HoldfastError, TimeoutError) as error:
        get_run_logger().warning("replay %s: %s", group, error or "no result in time")
        # A machine that is gone shows nothing about what the others of its group compute; one that hangs may.
        no_evidence = "" if isinstance(error, TimeoutError) else f"replay {group}: {error}"
        return ReplayEnd(ok=False, played=GroupResults(size=0), no_evidence=no_evidence)
    finally:
        await fleet.ask(
            case.ctx,
            machines,
            lambda agent, m: agent.fence(Fence(job=name, epoch=case.broken_epoch, incarnation=m.incarnation)),
        )
    for result in results:
        if not result.ok:
            get_run_logger().warning(
                "replay %s: rank %d on %s: %s", group, result.rank, result.machine, result.detail
            )
    raised = {str(alert.evidence.get("error_type") or "") for alert in case.incident.alerts} - {""}
    return ReplayEnd(
        ok=all(result.ok for result in results),
        played=_played(results),
        no_evidence=unplayed.reason(results, case.incident_class, raised),
    )


def _played(results: list[RankResult]) -> GroupResults:
    by_rank = sorted(results, key=lambda result: result.rank)
    return GroupResults(
        size=len(by_rank),
        kind="; ".join(sorted({result.kind for result in by_rank})),
        digests=tuple(result.digests for result in by_rank),
    )


async def _start(
    case: RecoveryContext, name: str, group: str, machines: list[Machine], checkpoint: RemoteCheckpoint | None
) -> None:
    job, epoch = case.job_now(), case.broken_epoch
    per = job.spec.ranks_per_machine
    first = machines[0]
    world_size = per * len(machines)
    rendezvous = await case.ctx.agent(first).open_rendezvous(
        OpenRendezvous(job=name, epoch=epoch, incarnation=first.incarnation, world_size=world_size)
    )
    skip_steps = case.ctx.ledger.skipped_steps(job.name)
    orders = {
        machine.name: Start(
            skip_steps=skip_steps,
            job=name,
            epoch=epoch,
            incarnation=machine.incarnation,
            script=job.spec.script,
            args=job.spec.args,
            env=job.spec.env,
            code_version=job.code_version,
            ranks=tuple(range(i * per, (i + 1) * per)),
            world_size=world_size,
            rendezvous=rendezvous,
            restore=(
                RestoreOrder(step=checkpoint.step, tier=Tier.S3, key=checkpoint.key)
                if checkpoint
                else _beginning(job)
            ),
            replay=Replay(group=group, steps=case.ctx.policy.replay.steps),
        )
        for i, machine in enumerate(machines)
    }
    fleet.all_or_raise(
        await fleet.ask(case.ctx, machines, lambda agent, machine: agent.start(orders[machine.name]))
    )


def _beginning(job: Job) -> RestoreOrder:
    """Return the order for a job without a checkpoint: what it starts from, or zero."""
    source = job.spec.start_from
    return RestoreOrder(step=source.first_step, start_from=source) if source else RestoreOrder()


def checkpoint_of(case: RecoveryContext) -> RemoteCheckpoint | None:
    """Return the newest checkpoint in S3 within the bound: it loads at the smaller world size; None: from scratch.

    Chosen once for all groups: an upload that ends meanwhile would have some of them compute something else.
    """
    ledger = case.ctx.ledger
    known = lineage.valid(ledger.checkpoints(case.job, include_suspect=False), ledger.epochs(case.job))
    within = [c for c in known if case.last_good_step is None or c.step <= case.last_good_step]
    return max(within, key=lambda c: c.step, default=None)


async def _results(case: RecoveryContext, name: str, machines: list[Machine]) -> list[RankResult]:
    """Wait for the results of all ranks. The caller bounds it.

    A machine that is silent is asked again for a while: the replay itself may keep it busy for longer than an answer is
    waited for, and a group that fails is held against its machines.
    """
    clock = case.ctx.clock
    answered_at = clock.monotonic()
    while True:
        found = await fleet.ask(
            case.ctx, machines, lambda agent, _: agent.replay_results(name, case.broken_epoch)
        )
        silent, now = fleet.silent(found), clock.monotonic()
        answered_at = answered_at if silent else now
        answers = (fleet.all_but_silent if now - answered_at < SILENT_S else fleet.all_or_raise)(found)
        ended = [result for results in answers.values() for result in results or ()]
        # One bad rank decides; its group need not wait for ranks that hang on it.
        whole = not silent and all(results is not None for results in answers.values())
        if whole or any(not r.ok for r in ended):
            return ended
        await asyncio.sleep(0.05)

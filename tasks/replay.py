"""Step: dual-phase replay. Run the job again in small groups of machines, and see which groups go wrong.

Method: ByteDance, arXiv 2509.16293, section on silent data corruption (TP and PP kept, DP shrunk).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from prefect import task
from prefect.logging import get_run_logger

from holdfast.errors import HoldfastError
from holdfast.models.agent import Fence, OpenRendezvous, RankResult, Replay, Start
from holdfast.models.alert import Blame, Verdict
from holdfast.models.checkpoint import RemoteCheckpoint, RestoreOrder, Tier
from holdfast.models.machine import Machine
from holdfast.policies import lineage, replay_groups
from holdfast.policies.replay_groups import Next
from holdfast.tasks import fleet
from holdfast.tasks.case import Case


@task(task_run_name="dual-phase replay of {case.job}")
async def replay(case: Case) -> Verdict:
    """Replay in horizontal, then vertical groups; the suspects lie where failing groups cross."""

    async def act() -> dict[str, Any]:
        job, policy = case.job_now(), case.ctx.policy
        plan = replay_groups.plan(len(job.machines), _machines_per_pipeline(case))
        limit = policy.aggregate.limit(len(job.machines))
        horizontal: set[int] = set()
        vertical: set[int] = set()
        for left in range(policy.replay.repeats, -1, -1):
            # A group fails only for a reason: what any round found counts, however seldom it comes.
            horizontal.update(await _phase(case, "h", plan.horizontal))
            vertical.update(await _phase(case, "v", plan.vertical))
            outcome = replay_groups.suspects(plan, horizontal, vertical)
            decision = replay_groups.decide(outcome, limit, left)
            if decision.next is not Next.AGAIN:
                break
        verdict = Verdict(
            suspects=tuple(job.machines[i] for i in decision.suspects),
            confidence=outcome.confidence,
            evidence=(*outcome.reasons, decision.reason),
            blame=Blame.CODE if decision.next is Next.BLAME_CODE else Blame.NOBODY,
        )
        return verdict.model_dump(mode="json")

    verdict = Verdict.model_validate(await case.once("replay", case.life, {}, act))
    for line in verdict.evidence:
        get_run_logger().info("%s", line)
    return verdict


def _machines_per_pipeline(case: Case) -> int:
    """How many whole machines one TP x PP block of ranks spans."""
    spec = case.job_now().spec
    block = spec.parallelism.tp * spec.parallelism.pp
    return max(1, -(-block // spec.ranks_per_machine))


async def _phase(case: Case, phase: str, groups: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """Replay all groups of one phase at once; the indices of the groups that failed."""
    machines = case.machines_now()
    outcomes = await asyncio.gather(
        *(
            _group(case, f"{phase}{index}", [machines[i] for i in members])
            for index, members in enumerate(groups)
        )
    )
    failed = tuple(index for index, ok in enumerate(outcomes) if not ok)
    get_run_logger().info(
        "phase %s: %d groups, failing: %s", phase, len(groups), ", ".join(map(str, failed)) or "none"
    )
    return failed


async def _group(case: Case, group: str, machines: list[Machine]) -> bool:
    """Run a few steps on ``machines``; True when every rank's loss and gradients stay finite."""
    policy, name = case.ctx.policy.replay, f"{case.job}~{group}"
    try:
        await _start(case, name, group, machines)
        results = await asyncio.wait_for(_results(case, name, machines), policy.timeout_s)
    except (HoldfastError, TimeoutError) as error:
        get_run_logger().warning("replay %s: %s", group, error or "no result in time")
        return False
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
    return all(result.ok for result in results)


async def _start(case: Case, name: str, group: str, machines: list[Machine]) -> None:
    job, epoch = case.job_now(), case.broken_epoch
    per = job.spec.ranks_per_machine
    first = machines[0]
    world_size = per * len(machines)
    rendezvous = await case.ctx.agent(first).open_rendezvous(
        OpenRendezvous(job=name, epoch=epoch, incarnation=first.incarnation, world_size=world_size)
    )
    checkpoint = _checkpoint(case)
    orders = {
        machine.name: Start(
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
                else RestoreOrder()
            ),
            replay=Replay(group=group, steps=case.ctx.policy.replay.steps),
        )
        for i, machine in enumerate(machines)
    }
    fleet.all_or_raise(
        await fleet.ask(case.ctx, machines, lambda agent, machine: agent.start(orders[machine.name]))
    )


def _checkpoint(case: Case) -> RemoteCheckpoint | None:
    """The newest checkpoint in S3 within the bound: it loads at the smaller world size; None: from scratch."""
    ledger = case.ctx.ledger
    known = lineage.valid(ledger.checkpoints(case.job, include_suspect=False), ledger.epochs(case.job))
    within = [c for c in known if case.last_good_step is None or c.step <= case.last_good_step]
    return max(within, key=lambda c: c.step, default=None)


async def _results(case: Case, name: str, machines: list[Machine]) -> list[RankResult]:
    while True:
        answers = fleet.all_or_raise(
            await fleet.ask(
                case.ctx, machines, lambda agent, _: agent.replay_results(name, case.broken_epoch)
            )
        )
        ended = [result for results in answers.values() for result in results or ()]
        # One bad rank decides; its group need not wait for ranks that hang on it.
        if all(results is not None for results in answers.values()) or any(not r.ok for r in ended):
            return ended
        await asyncio.sleep(0.05)

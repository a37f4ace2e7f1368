"""Step: find the culprit with the job stopped. Tiers, cheapest first, until one is sure."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from prefect import task
from prefect.logging import get_run_logger

from holdfast.errors import HoldfastError, UnavailableError
from holdfast.models.agent import Diagnose, Fence, OpenRendezvous, Rendezvous, StackDump
from holdfast.models.alert import Finding, Verdict
from holdfast.models.machine import Machine
from holdfast.policies import aggregate, verdicts
from holdfast.tasks import fleet
from holdfast.tasks.case import Case

TIERS = ("inspect", "all_to_all", "all_gather")


async def diagnose(case: Case, tiers: Sequence[str] = TIERS) -> Verdict:
    """Run the tiers in order until one names a culprit; what they found, all together."""
    verdict = Verdict()
    for tier in tiers:
        found = await check(case, tier)
        verdict = verdicts.judge((*verdict.findings, *found))
        if verdict.suspects:
            break
    return verdict


@task(task_run_name="{tier}")
async def check(case: Case, tier: str) -> tuple[Finding, ...]:
    """Run one tier on all machines of the job; an agent that does not answer is a finding too."""

    async def act() -> dict[str, Any]:
        machines = case.machines_now()
        found = await (_neighbours(case, machines) if tier == "all_gather" else _each(case, machines, tier))
        return {"findings": [finding.model_dump(mode="json") for finding in found]}

    done = await case.once("check", f"{tier}:e{case.broken_epoch}", {"tier": tier}, act)
    findings = tuple(Finding.model_validate(found) for found in done["findings"])
    bad = [finding for finding in findings if not finding.ok]
    logger = get_run_logger()
    logger.info("%s: %d checks, %d failed", tier, len(findings), len(bad))
    for finding in bad:
        logger.warning("%s on %s: %s", finding.check, finding.machine, finding.detail)
    return findings


@task(task_run_name="dump stacks of {case.job}")
async def dump_stacks(case: Case) -> Verdict:
    """Stacks of all ranks and their children, aggregated; suspects are the outliers' machines.

    Taken while the ranks still hang, so before ``pause``.
    """

    async def act() -> dict[str, Any]:
        job = case.job_now()
        answers = await fleet.ask(
            case.ctx, case.machines_now(), lambda agent, _: agent.stacks(case.job, case.broken_epoch)
        )
        stacks: list[StackDump] = [stack for dumps in fleet.answered(answers).values() for stack in dumps]
        found = aggregate.aggregate(stacks, job, case.ctx.policy.aggregate)
        silent = fleet.lost(answers)
        return Verdict(
            suspects=tuple(dict.fromkeys((*silent, *found.suspects))),
            confidence=1.0 if silent else found.confidence,
            evidence=(*(f"agent on {name} does not answer" for name in silent), *found.reasons),
        ).model_dump(mode="json")

    done = await case.once("stacks", f"e{case.broken_epoch}", {}, act)
    verdict = Verdict.model_validate(done)
    for line in verdict.evidence:
        get_run_logger().info("%s", line)
    return verdict


async def _each(case: Case, machines: list[Machine], tier: str) -> list[Finding]:
    """One check inside each machine, all machines at once."""
    per = case.job_now().spec.ranks_per_machine
    answers = await fleet.ask(
        case.ctx,
        machines,
        lambda agent, machine: agent.diagnose(
            Diagnose(
                job=f"{case.job}~{tier}",
                epoch=case.broken_epoch,
                incarnation=machine.incarnation,
                check=tier,
                processes=max(2, per),
            )
        ),
    )
    return [finding for name, answer in answers.items() for finding in _findings(tier, name, answer)]


async def _neighbours(case: Case, machines: list[Machine]) -> list[Finding]:
    """All-gather between each machine and the next, all pairs at once (two machines: one pair)."""
    if len(machines) < 2:
        return []
    pairs = [(machine, machines[(i + 1) % len(machines)]) for i, machine in enumerate(machines)]
    if len(machines) == 2:
        pairs = pairs[:1]
    # Named by attempt: a store that an earlier attempt fenced cannot be opened again.
    job, epoch, first = f"{case.job}~pairs{case.attempt}", case.broken_epoch, machines[0]
    try:
        rendezvous = await case.ctx.agent(first).open_rendezvous(
            OpenRendezvous(job=job, epoch=epoch, incarnation=first.incarnation, world_size=2)
        )
    except HoldfastError as error:
        return _findings("all_gather", first.name, error)
    found = await asyncio.gather(*(_pair(case, job, rendezvous, *pair) for pair in pairs))
    await fleet.ask(
        case.ctx,
        [first],
        lambda agent, m: agent.fence(Fence(job=job, epoch=epoch, incarnation=m.incarnation)),
    )
    return [finding for findings in found for finding in findings]


async def _pair(case: Case, job: str, rendezvous: Rendezvous, left: Machine, right: Machine) -> list[Finding]:
    position = {left.name: 0, right.name: 1}
    peer = {left.name: right.name, right.name: left.name}
    answers = await fleet.ask(
        case.ctx,
        [left, right],
        lambda agent, machine: agent.diagnose(
            Diagnose(
                job=job,
                epoch=case.broken_epoch,
                incarnation=machine.incarnation,
                check="all_gather",
                processes=1,
                peer=peer[machine.name],
                process_rank=position[machine.name],
                rendezvous=rendezvous,
            )
        ),
    )
    return [finding for name, answer in answers.items() for finding in _findings("all_gather", name, answer)]


def _findings(tier: str, machine: str, answer: list[Finding] | HoldfastError) -> list[Finding]:
    """The agent's findings, or one that says that it could not be asked (sure when it is gone)."""
    if not isinstance(answer, HoldfastError):
        return answer
    gone = isinstance(answer, UnavailableError)
    return [Finding(check=tier, machine=machine, ok=False, detail=str(answer), sure=gone)]

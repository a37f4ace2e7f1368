"""Step: find the culprit with the job stopped. Tiers, cheapest first, until one is sure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from prefect import task
from prefect.logging import get_run_logger

from holdfast.agent.client import AgentClient
from holdfast.errors import HoldfastError
from holdfast.models.agent import Check, FlightRecord, StackDump
from holdfast.models.alert import Finding, Verdict
from holdfast.models.machine import Machine, MachineState
from holdfast.operations import fleet, recurrence
from holdfast.policies.diagnose import aggregate, domains, flight, hang_verdict, verdicts
from holdfast.policies.diagnose.stacks import compared
from holdfast.policies.escalate.ladder import since_progress
from holdfast.policies.join_names import join_names
from holdfast.storage.ledger.one_view import one_view
from holdfast.tasks import checks, hang_over, history, late, odd_replica, standing
from holdfast.tasks.checks import Subject
from holdfast.tasks.recovery_context import RecoveryContext

_SPARES = 4
"""Number of standbys that may be the good partner of a suspect."""
_MOST_LINES = 100
"""Findings, or lines of evidence, that a run logs of one look: each is sent to Prefect."""


async def diagnose(
    case: RecoveryContext, tiers: Sequence[Check] | None = None, *, voted: Verdict | None = None
) -> Verdict:
    """Run the tiers in order until one names a culprit or time is up; return all findings together.

    A root cause that joins the incident meanwhile ends the search: it names the machine.

    One after the other also where time is short: at the same time they would need twice the processes.

    Args:
        case: the incident.
        tiers: instead of those of the class's ladder.
        voted: from looks at the job while it trained; holds where the tiers find nothing.
    """
    found = await _searched(case, tiers)
    return found if voted is None else verdicts.measured(found, voted)


async def _searched(case: RecoveryContext, tiers: Sequence[Check] | None) -> Verdict:
    policy, clock = case.ctx.policy, case.ctx.clock
    ladder = policy.ladder.of(case.incident_class)
    slow_factor = policy.diagnose.slow_factor if ladder.accuse_slow else None
    deadline = clock.monotonic() + policy.diagnose.budget_s
    verdict = Verdict()
    if root := late.verdict(case) or odd_replica.verdict(case):
        return root
    for tier in tiers or (*ladder.tiers, *(ladder.tiers_again if _came_again(case) else ())):
        if clock.monotonic() > deadline:
            reason = f"stopped before {tier}: the budget of {policy.diagnose.budget_s:g} s is spent"
            return verdict.model_copy(update={"evidence": (*verdict.evidence, reason)})
        verdict = verdicts.judge(
            (*verdict.findings, *await check(case, tier)),
            slow_factor,
            policy.diagnose.pace,
            domains.known(case.machines_now(), policy),
            policy.detect.network.switch_share,
            most=policy.aggregate.limit(len(case.job_now().machines)),
        )
        if root := late.verdict(case):
            return root.model_copy(update={"findings": verdict.findings})
        if verdict.suspects and not standing.only(case, verdict):
            break
    return verdict


@one_view()
def _came_again(case: RecoveryContext) -> bool:
    """Return whether the job failed again without progress, now or since an earlier incident; or it fails often."""
    policy = case.ctx.policy.ladder
    if case.again or not policy.of(case.incident_class).tiers_again:
        return case.again
    if recurrence.often_or_regularly(case.ctx, case.incident):
        return True
    return bool(since_progress(history.past_incidents(case.ctx, case.incident), policy.progress_steps))


@task(task_run_name="{tier}")
async def check(case: RecoveryContext, tier: str) -> tuple[Finding, ...]:
    """Run one tier on all machines of the job; an agent that does not answer is a finding too."""

    async def act() -> dict[str, Any]:
        machines = case.machines_now()
        found = await _run_tier(case, machines, tier)
        return {"findings": [finding.model_dump(mode="json") for finding in found]}

    intent = {"tier": tier, "incarnations": case.incarnations()}
    done = await case.once("check", f"{tier}:{case.life}", intent, act)
    findings = tuple(Finding.model_validate(found) for found in done["findings"])
    bad = [finding for finding in findings if not finding.ok]
    logger = get_run_logger()
    logger.info("%s: %d checks, %d failed", tier, len(findings), len(bad))
    for line in _bounded([f"{each.check} on {each.machine}: {each.detail}" for each in bad]):
        logger.warning("%s", line)
    return findings


def _bounded(lines: Sequence[str]) -> list[str]:
    more = len(lines) - _MOST_LINES
    return [*lines[:_MOST_LINES], *([f"and {more} more"] if more > 0 else [])]


@task(task_run_name="dump stacks of {case.job}")
async def dump_stacks(case: RecoveryContext) -> Verdict:
    """Dump the stacks of all ranks and their children, aggregated; suspects are the outliers' machines.

    When the stacks prove nothing, the records of the ranks' collectives are analysed: they may name a rank where the
    stacks name none, or show that the program is at fault and not the machine whose ranks stand out. Taken while the
    ranks still hang, so before ``pause``.

    Raises:
        NotNeededError: the job has made steps since it was reported to hang.
    """

    async def act() -> dict[str, Any]:
        job = case.job_now()
        await hang_over.watch(case)
        answers = await all_stacks(case)
        await hang_over.refuse(case)
        if len(unanswered := fleet.silent(answers)) > case.ctx.policy.aggregate.limit(len(job.machines)):
            # Of many silent machines few are gone. Whether they answer is seen again when the ranks are stopped.
            why = (
                f"{join_names(unanswered)} send no answer: the network between them and the worker may be cut"
            )
            return Verdict(evidence=(why,)).model_dump(mode="json")
        stacks: list[StackDump] = [stack for dumps in fleet.answered(answers).values() for stack in dumps]
        limits, blocked = case.ctx.policy.aggregate, standing.blocked(case.incident)
        found = aggregate.aggregate(stacks, job, limits, blocked)
        silent = fleet.lost(answers)
        asked = hang_verdict.needs_records(found, silent)
        records = await flight_records(case, case.machines_now()) if asked else []
        conclusion = hang_verdict.verdict(found, stacks, records, job, limits, blocked, silent)
        return conclusion.model_dump(mode="json")

    done = await case.once("stacks", case.life, {"incarnations": case.incarnations()}, act)
    verdict = Verdict.model_validate(done)
    for line in _bounded(verdict.evidence):
        get_run_logger().info("%s", line)
    return verdict


async def _run_tier(case: RecoveryContext, machines: list[Machine], tier: str) -> list[Finding]:
    spec = case.job_now().spec
    measure = case.ctx.policy.ladder.of(case.incident_class).accuse_slow
    subject = Subject(
        case.ctx,
        case.job,
        case.broken_epoch,
        case.attempt,
        spec.ranks_per_machine,
        measure,
        most_silent=case.ctx.policy.aggregate.limit(len(machines)),
        env=spec.env,
    )
    match tier:
        case Check.ALL_GATHER:
            spares = case.ctx.ledger.machines(state=MachineState.STANDBY)[:_SPARES]
            return await checks.neighbours(subject, machines, spares)
        case Check.FLIGHT_RECORDER:
            return await _flight(case, machines)
        case _:
            return await checks.each(subject, machines, tier)


async def all_stacks(case: RecoveryContext) -> dict[str, list[StackDump] | HoldfastError]:
    """Return the stacks of all ranks and their children, as far as they are compared, or the error, by machine."""

    async def ask(agent: AgentClient, _: Machine) -> list[StackDump]:
        return compared(await agent.stacks(case.job, case.broken_epoch))

    return await fleet.ask(case.ctx, case.machines_now(), ask)


async def flight_records(case: RecoveryContext, machines: list[Machine]) -> list[FlightRecord]:
    """Return what the ranks' flight recorders have, of machines that answer."""
    known: dict[tuple[int, ...], tuple[int, ...]] = {}

    async def ask(agent: AgentClient, _: Machine) -> list[FlightRecord]:
        found = await agent.flight_records(case.job, case.broken_epoch)
        # The members of a group once, not as often as it has members: of all ranks of a large job that is gigabytes.
        return [each.model_copy(update={"ranks": known.setdefault(each.ranks, each.ranks)}) for each in found]

    answers = await fleet.ask(case.ctx, machines, ask)
    return [record for records in fleet.answered(answers).values() for record in records]


async def _flight(case: RecoveryContext, machines: list[Machine]) -> list[Finding]:
    """Analyse the collectives that ranks recorded before they ended; a finding per accused machine, one if none is."""
    found = flight.analyse(await flight_records(case, machines), case.job_now(), case.ctx.policy.aggregate)
    detail = "; ".join(found.reasons)
    if not found.suspects:
        return [Finding(check=Check.FLIGHT_RECORDER, machine=machines[0].name, ok=True, detail=detail)]
    return [
        Finding(check=Check.FLIGHT_RECORDER, machine=name, ok=False, detail=detail) for name in found.suspects
    ]

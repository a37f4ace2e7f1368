"""Step: find the machines that make a training job slow. Several looks at all stacks, and a vote."""

from __future__ import annotations

import asyncio
from typing import Any

from prefect import task
from prefect.logging import get_run_logger

from holdfast.errors import LimitError
from holdfast.models.agent import StackDump
from holdfast.models.alert import AlertKind, IncidentClass, Verdict
from holdfast.models.history import ActionState
from holdfast.operations import fleet
from holdfast.policies.classify import common_cause
from holdfast.policies.classify.beside import number
from holdfast.policies.diagnose import aggregate, groups, slow_vote
from holdfast.policies.diagnose.groups import ParallelGroup
from holdfast.policies.escalate import searched
from holdfast.tasks import history, late, standing
from holdfast.tasks.diagnose import all_stacks, flight_records
from holdfast.tasks.recovery_context import RecoveryContext


def must_be_of_few(case: RecoveryContext, verdict: Verdict) -> None:
    """Refuse to stop the job where no group lags, and more machines explain the pace than may be evicted at once.

    Raises:
        LimitError: what they share (cooling, power) is likely to be the cause.
    """
    if verdict.suspects or case.stands:
        return
    if why := common_cause.of_pace(case.incident.alerts, case.job_now(), case.ctx.policy):
        raise LimitError(why)


def must_not_be_searched(case: RecoveryContext, verdict: Verdict) -> None:
    """Refuse to stop the job for a search that found no machine a while ago, when the job is as slow as it was then.

    Raises:
        LimitError: what else it is, a person must find out; the job runs on.
    """
    by_hand = any(alert.kind is AlertKind.MANUAL for alert in case.incident.alerts)
    if verdict.suspects or case.stands or by_hand or late.roots(case):
        return
    why = searched.why_not_again(case.incident.opened_at, _looks(case), _helped_s(case))
    if why and not standing.weigh(case).machines:
        raise LimitError(why)


def _helped_s(case: RecoveryContext) -> float:
    """Return how long a job is not slow after a restart that helped: with long steps several times what is judged."""
    steps = 4 * case.ctx.policy.detect.throughput.recent
    step_s = [
        number(alert.evidence.get("value"))
        for alert in case.incident.alerts
        if alert.kind is AlertKind.THROUGHPUT_DECLINE
    ]
    return max(case.ctx.policy.again.longest_s, steps * max(step_s, default=0.0))


def _looks(case: RecoveryContext) -> list[searched.Look]:
    ledger, job = case.ctx.ledger, case.job_now()
    epochs = ledger.epochs(case.job)
    by_number = {each.epoch: each for each in epochs}
    found = []
    for past in history.since_fresh(case.ctx, case.incident, epochs):
        epoch = by_number.get(past.epoch)
        same = epoch and (epoch.machines, epoch.code_version) == (job.machines, job.code_version)
        if past.incident_class is not IncidentClass.FAIL_SLOW or past.closed_at is None or not same:
            continue
        wait = ledger.last_wait(past.id)
        actions = ledger.actions(past.id, evidence=False)
        done = {each.kind for each in actions if each.state is ActionState.DONE}
        look = searched.Look(
            incident=past.id,
            opened_at=past.opened_at,
            until=max(past.closed_at, wait.next_at if wait else 0.0),
            stopped="pause" in done,
            found="evict" in done,
        )
        found.append(look)
    return found


@task(task_run_name="vote for who makes {case.job} slow")
async def vote_slow(case: RecoveryContext) -> Verdict:
    """Look at all stacks several times while the job trains; suspects are the machines of the group that lags most.

    Groups are those of the job file and those that the ranks' flight recorders have, asked for once.
    A machine that is reported to fail surely meanwhile ends the vote: it is the suspect. A job that stands since an
    earlier attempt has nothing to compare.
    Method: ByteDance, arXiv 2509.16293, section 5 (every 10 s, five rounds).
    """

    async def act() -> dict[str, Any]:
        policy, job = case.ctx.policy, case.job_now()
        rounds = []
        for turn in range(policy.diagnose.slow_rounds):
            if turn:
                await asyncio.sleep(policy.diagnose.slow_interval_s)
            if root := late.verdict(case):
                # A sure failure explains the pace: no more machines are compared.
                return root.model_dump(mode="json")
            answers = await all_stacks(case)
            stacks: list[StackDump] = [dump for dumps in fleet.answered(answers).values() for dump in dumps]
            rounds.append(slow_vote.without_ahead(aggregate.aggregate(stacks, job, policy.aggregate), stacks))
        made: list[ParallelGroup] = []
        if slow_vote.on_several(rounds, job):
            records = await flight_records(case, case.machines_now())
            made = groups.observed((record.ranks for record in records), job.spec.world_size)
        found = slow_vote.decide(rounds, job, policy.aggregate, made)
        return Verdict(
            suspects=found.suspects, confidence=found.confidence, evidence=found.reasons
        ).model_dump(mode="json")

    if case.stands:
        return Verdict(evidence=("the job stands since an earlier attempt: its pace was compared then",))
    verdict = Verdict.model_validate(await case.once("vote", case.life, {}, act))
    for line in verdict.evidence:
        get_run_logger().info("%s", line)
    return verdict

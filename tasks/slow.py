"""Step: find the machines that make a training job slow. Several looks at all stacks, and a vote."""

from __future__ import annotations

import asyncio
from typing import Any

from prefect import task
from prefect.logging import get_run_logger

from holdfast.errors import LimitError
from holdfast.models.agent import StackDump
from holdfast.models.alert import Verdict
from holdfast.operations import fleet
from holdfast.policies.classify import common_cause
from holdfast.policies.diagnose import aggregate, groups, slow_vote
from holdfast.policies.diagnose.groups import Group
from holdfast.tasks import late
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
        for number in range(policy.diagnose.slow_rounds):
            if number:
                await asyncio.sleep(policy.diagnose.slow_interval_s)
            if root := late.verdict(case):
                # A sure failure explains the pace: no more machines are compared.
                return root.model_dump(mode="json")
            answers = await all_stacks(case)
            stacks: list[StackDump] = [dump for dumps in fleet.answered(answers).values() for dump in dumps]
            rounds.append(aggregate.aggregate(stacks, job, policy.aggregate))
        made: list[Group] = []
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

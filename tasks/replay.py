"""Step: dual-phase replay. Run the job again in small groups of machines, and see which groups go wrong.

Method: ByteDance, arXiv 2509.16293, section on silent data corruption (TP and PP kept, DP shrunk). A group goes wrong
when its loss or gradients are not finite, or when its results are not, bit for bit, those of the groups that must
agree with it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from prefect import task
from prefect.logging import get_run_logger

from holdfast.models.alert import Blame, IncidentClass, Verdict
from holdfast.policies.diagnose import agreement, replay_groups, unplayed
from holdfast.policies.diagnose.replay_groups import Next, ReplayDecision, ReplayOutcome, ReplayVerdict
from holdfast.tasks.recovery_context import RecoveryContext
from holdfast.tasks.replay_group import ReplayEnd, checkpoint_of, play

Round = tuple[list[ReplayEnd], list[ReplayEnd]]
"""The horizontal and the vertical phase."""


class Rounds:
    """Replays of all groups of a plan, from one checkpoint."""

    def __init__(self, case: RecoveryContext) -> None:
        self.case = case
        spec = case.job_now().spec
        block = spec.parallelism.block()
        self.per_pipeline = max(1, -(-block // spec.ranks_per_machine))
        """Whole machines that one TP x PP block of ranks spans."""
        self.plan = replay_groups.plan(len(case.job_now().machines), self.per_pipeline)
        self._checkpoint = checkpoint_of(case)

    async def both(self) -> Round:
        """Replay the horizontal and the vertical phase."""
        return await self._phase("h", self.plan.horizontal), await self._phase("v", self.plan.vertical)

    async def alone(self) -> list[ReplayEnd]:
        """Replay every machine as a group of its own."""
        return await self._phase("s", [(number,) for number in range(self.plan.machines)])

    async def _phase(self, phase: str, groups: Sequence[Sequence[int]]) -> list[ReplayEnd]:
        """Replay all groups of one phase at once."""
        machines = self.case.machines_now()
        ended = await asyncio.gather(
            *(
                play(self.case, f"{phase}{index}", [machines[i] for i in members], self._checkpoint)
                for index, members in enumerate(groups)
            )
        )
        get_run_logger().info(
            "phase %s: %d groups, failing: %s; %s",
            phase,
            len(groups),
            ", ".join(map(str, _failed(ended))) or "none",
            "; ".join(_compared(ended).reasons) or "groups that can be compared agree",
        )
        return ended


@task(task_run_name="dual-phase replay of {case.job}")
async def replay(case: RecoveryContext) -> Verdict:
    """Replay in horizontal, then vertical groups; the suspects lie where failing groups cross."""

    async def act() -> dict[str, Any]:
        job, policy = case.job_now(), case.ctx.policy
        rounds = Rounds(case)
        limit = policy.aggregate.limit(len(job.machines))
        horizontal: set[int] = set()
        vertical: set[int] = set()
        for left in range(policy.replay.repeats, -1, -1):
            # A group fails only for a reason: a failure in any round counts, however seldom it comes.
            first = await rounds.both()
            if why := _not_replayed(first):
                reason = f"{unplayed.COULD_NOT} ({why})"
                outcome = ReplayVerdict(outcome=ReplayOutcome.INSEPARABLE, reasons=())
                decision = ReplayDecision(next=Next.NO_SUSPECT, reason=reason)
                break
            horizontal.update(_failed(first[0]))
            vertical.update(_failed(first[1]))
            outcome = replay_groups.suspects(rounds.plan, horizontal, vertical)
            decision = replay_groups.decide(outcome, limit, left)
            if outcome.outcome is ReplayOutcome.NOT_REPRODUCED and _differ(first):
                # Finite everywhere, and not the same.
                outcome, decision = await _by_digests(rounds, first, limit)
                break
            if decision.next is not Next.AGAIN:
                break
        if decision.next is Next.BLAME_CODE and (why := _nothing_seen(case, first)):
            decision = ReplayDecision(next=Next.NO_SUSPECT, reason=why)
        verdict = Verdict(
            suspects=tuple(job.machines[i] for i in decision.suspects),
            confidence=outcome.confidence,
            evidence=(*outcome.reasons, decision.reason),
            blame=Blame.CODE if decision.next is Next.BLAME_CODE else Blame.NONE,
        )
        return verdict.model_dump(mode="json")

    verdict = Verdict.model_validate(await case.once("replay", case.life, {}, act))
    for line in verdict.evidence:
        get_run_logger().info("%s", line)
    return verdict


def _not_replayed(phases: Round) -> str:
    """Return why groups of a phase could not be replayed where none ran well; empty: both phases show something."""
    for phase in phases:
        reasons = [group.no_evidence for group in phase if group.no_evidence]
        if reasons and not any(group.ok for group in phase):
            return reasons[0]
    return ""


def _nothing_seen(case: RecoveryContext, phases: Round) -> str:
    """Return why groups that all failed are no evidence against the code: no rank of any came to a result.

    Where the job hangs, that is the fault itself.
    """
    seen = any(group.played.size for phase in phases for group in phase)
    if seen or case.incident_class is IncidentClass.JOB_HANG:
        return ""
    return (
        "no group came to a result in time (what they load from, or agents, may be slow or away): no evidence"
    )


async def _by_digests(rounds: Rounds, first: Round, limit: int) -> tuple[ReplayVerdict, ReplayDecision]:
    """Find the group that computes something else. A second round must agree; with too few groups, replay each alone.

    A machine is compared by itself only where it holds a whole pipeline.
    """
    second = await rounds.both()
    reasons = tuple(line for phase in first for line in _compared(phase).reasons)
    odd_h, odd_v = (_again(one, other) for one, other in zip(first, second, strict=True))
    outcome = replay_groups.suspects(rounds.plan, odd_h, odd_v)
    decision = replay_groups.decide(outcome, limit, 0)
    if decision.next is not Next.EVICT and all(_differ(each) for each in (first, second)):
        outcome, more = await _alone(rounds)
        decision, reasons = replay_groups.decide(outcome, limit, 0), (*reasons, *more)
    return outcome.model_copy(update={"reasons": (*reasons, *outcome.reasons)}), decision


async def _alone(rounds: Rounds) -> tuple[ReplayVerdict, tuple[str, ...]]:
    """Replay every machine by itself, twice."""
    if rounds.per_pipeline > 1:
        why = "groups differ, and there are too few of them to know which is right"
        return ReplayVerdict(outcome=ReplayOutcome.INSEPARABLE, reasons=(why,)), ()
    once, twice = await rounds.alone(), await rounds.alone()
    return replay_groups.alone(_again(once, twice)), _compared(once).reasons


def _differ(phases: Round) -> bool:
    """Return whether some groups that must agree do not."""
    return any(_compared(phase).differ for phase in phases)


def _failed(ended: Sequence[ReplayEnd]) -> tuple[int, ...]:
    """Return indices of the groups that failed, with evidence."""
    return tuple(index for index, group in enumerate(ended) if not group.ok and not group.no_evidence)


def _compared(ended: Sequence[ReplayEnd]) -> agreement.Agreement:
    return agreement.compare([group.played for group in ended])


def _again(first: Sequence[ReplayEnd], second: Sequence[ReplayEnd]) -> tuple[int, ...]:
    return agreement.again([group.played for group in first], [group.played for group in second])

"""Ask a person before an act: the flow run is suspended until it is answered, in the Prefect UI or on the command line.

The answer in the ledger counts: ``holdfast approve`` writes it there and resumes the run; an answer given in the UI
is written there when the run starts again. If no answer comes in time, the gateway writes the policy's default.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from prefect.flow_runs import asuspend_flow_run
from prefect.input import RunInput
from prefect.logging import get_run_logger
from pydantic import Field

from holdfast.errors import LimitError, StaleError
from holdfast.models.alert import IncidentState
from holdfast.models.history import Action
from holdfast.models.machine import Scope
from holdfast.models.missing import Missing
from holdfast.operations.inputs import note_answered
from holdfast.policies.escalate import approval, by_hand
from holdfast.tasks.recovery_context import RecoveryContext

_AGAIN_S = 0.5
_CULPRIT = "culprit"


class Approval(RunInput):
    """The answer, which the UI shows as a form."""

    approve: bool = Field(False, description="Yes: do it. No: leave it to a person.")
    by: str = Field("", max_length=200, description="Your name.")
    reason: str = Field("", max_length=2000, description="Why; goes into the incident report.")


async def ask_before_evicting(
    case: RecoveryContext, machines: Sequence[str], scope: Scope, dead: int = 0
) -> None:
    """Wait for a person's approval, if the policy wants one for this eviction.

    ``dead`` of the machines are dead for sure, and standbys can take their places.

    Raises:
        LimitError: it was refused, or no answer came and the policy's default is to refuse.
    """
    if _approved_before(case, len(machines)) or by_hand.asks_for(case.incident.alerts, machines):
        return
    why = approval.why_ask(case.incident_class, len(machines), scope, case.ctx.policy.approval, dead)
    await _ask(case, ", ".join(machines), ",".join(sorted(machines))[:200], scope, why)


async def ask_before_looking(case: RecoveryContext, scope: Scope) -> None:
    """Wait for a person's approval before a job that trains is stopped to look for a machine to evict.

    Raises:
        LimitError: it was refused, or no answer came and the policy's default is to refuse.
    """
    why = approval.why_ask(case.incident_class, 1, scope, case.ctx.policy.approval)
    await _ask(case, "the machine that checks accuse", _CULPRIT, scope, why)


def _approved_before(case: RecoveryContext, machines: int) -> bool:
    """Return whether the eviction of any culprit was approved already, before the job was stopped for it."""
    key = f"approve:{_CULPRIT}{case.again_after}"
    return machines == 1 and any(
        action.key == key and action.result.get("approve") for action in case.done("approve")
    )


async def _ask(case: RecoveryContext, whom: str, target: str, scope: Scope, why: str) -> None:
    policy = case.ctx.policy.approval
    if not why:
        return
    known = approval.Question(
        whom=whom,
        scope=scope,
        incident_class=case.incident_class,
        deadline_s=policy.deadline_s,
        default=policy.default,
    )
    answer = await _answer(case, target, approval.question(known, why))
    verb = "approved" if answer.get("approve") else "refused"
    message = (
        f"eviction of {whom} {verb} by {answer.get('by') or 'an unnamed person'}: {answer.get('reason')}"
    )
    get_run_logger().info("%s", message)
    if not answer.get("approve"):
        raise LimitError(message, Missing.APPROVAL)


async def _answer(case: RecoveryContext, target: str, question: str) -> dict[str, Any]:
    """Return the answer in the ledger; suspend the flow run while there is none."""
    ledger, policy = case.ctx.ledger, case.ctx.policy.approval
    key = f"approve:{target}{case.again_after}"
    intent = {
        "target": target,
        "question": question,
        "deadline": case.ctx.clock.now() + policy.deadline_s,
        "default": policy.default,
    }
    action = ledger.begin(case.incident_id, case.attempt, key, "approve", intent, case.lease)
    if action.state != "done":
        await _be_answered(case, target, key, question)
    note_answered(case.ctx, case.incident_id, case.job_now(), key)
    return next(each.result for each in ledger.actions(case.incident_id, "approve") if each.key == key)


async def _be_answered(case: RecoveryContext, target: str, key: str, question: str) -> None:
    """Suspend the flow run until there is an answer, and see it written into the ledger."""
    get_run_logger().warning("asks for approval: %s", question)
    form = Approval.with_initial_data(description=question)
    try:
        given = await asuspend_flow_run(
            wait_for_input=form, key=f"{case.incident_id}-{target}{case.again_after}"[:250]
        )
    except RuntimeError as error:
        # Without a deployment of a server that stays (Prefect is away) there is nothing to suspend.
        get_run_logger().info("not suspended (%s): waiting here", error)
        await _wait(case, key)
        return
    answer = {
        "approve": given.approve,
        "by": given.by or "a person in the Prefect UI",
        "reason": given.reason,
    }
    case.ctx.ledger.finish(case.incident_id, key, answer)


async def _wait(case: RecoveryContext, key: str) -> None:
    clock, began = case.ctx.clock, 0.0
    asked: Action | None = None
    while True:
        if case.incident.state is not IncidentState.OPEN:
            raise StaleError(f"incident {case.incident_id} is closed ({case.incident.state}): nothing to ask")
        action = next(a for a in case.ctx.ledger.actions(case.incident_id, "approve") if a.key == key)
        if action.state == "done":
            return
        if asked is None:
            # An earlier attempt may have asked it; from now on setting the wall clock changes nothing.
            asked, began = action, clock.monotonic() - max(0.0, clock.now() - action.begun_at)
        if clock.monotonic() - began > approval.within_s(
            asked.intent, asked.begun_at, case.ctx.policy.approval
        ):
            case.ctx.ledger.finish(case.incident_id, key, by_default(action))
            return
        await asyncio.sleep(_AGAIN_S)


def by_default(action: Action) -> dict[str, Any]:
    """Return the answer that counts when no person gave one."""
    approve = action.intent.get("default") == "approve"
    return {"approve": approve, "by": "the policy file", "reason": "no answer before the deadline"}

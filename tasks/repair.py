"""Steps of a repair: take it up, do the policy's next step, and end it; each recorded before it is done."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Sequence
from typing import Any

from prefect import task
from prefect.artifacts import acreate_markdown_artifact
from prefect.client.schemas.objects import State
from prefect.logging import get_run_logger
from prefect.states import Completed
from pydantic import Field

from holdfast.errors import RefusedError, ReplacedUnitError, StaleError
from holdfast.models.base import Frozen
from holdfast.models.machine import MachineState, Scope
from holdfast.models.repair import Repair, RepairState, Step, StepState
from holdfast.operations.context import Context
from holdfast.operations.evict import take_out
from holdfast.policies.pool import repair as policy
from holdfast.policies.pool.repair import NextStep
from holdfast.tasks import repair_acts
from holdfast.tasks.context import context
from holdfast.tasks.story import escape


class Repairing(Frozen):
    """Parameters of the repair flow."""

    repair: int | None = Field(None, description="Which one; empty: all that are due and not under way.")


class HeldRepair(Frozen):
    """A repair that this run holds."""

    id: int
    holder: str
    machine: str

    @property
    def now(self) -> Repair:
        """The repair as it stands in the ledger."""
        return context().ledger.repair(self.id)


@task(task_run_name="take up repairs")
async def take_up(wanted: Repairing) -> list[HeldRepair]:
    """Take up the due repairs and return them; no other run does them meanwhile."""
    ledger, holder, found = context().ledger, uuid.uuid4().hex, []
    due = [ledger.repair(wanted.repair)] if wanted.repair else ledger.repairs(state=RepairState.OPEN)
    for repair in due:
        try:
            taken = ledger.take_repair(repair.id, holder)
        except (StaleError, RefusedError) as why:
            get_run_logger().info("%s", why)
        else:
            found.append(HeldRepair(id=taken.id, holder=holder, machine=taken.machine))
    return found


def next_move(held: HeldRepair) -> NextStep | None:
    """Return the policy's next step for the repair as it stands; None: it is over."""
    ctx, repair = context(), held.now
    return policy.next_move(
        repair, ctx.ledger.repairs(machine=held.machine), ctx.policy.repair, ctx.clock.now()
    )


@task(task_run_name="{move.step.value} {held.machine}")
async def perform(held: HeldRepair, move: NextStep) -> bool:
    """Do one step; return whether the repair goes on in this run.

    A machine that is in use, or that is another one by now, is left alone, and its repair is over.
    """
    ctx = context()
    at_most_s = ctx.policy.repair.at_most_s(move.step)
    get_run_logger().info("%s %s: %s", move.step.value, held.machine, move.why)
    try:
        repair = ctx.ledger.begin_step(held.id, held.holder, move.step, move.why, at_most_s)
        if move.step is Step.TICKET:
            return await _ask_person(ctx, held, repair, move.why)
        if move.step is Step.ADMIT:
            summary = "; ".join(f"{step.step.value}: {step.said}" for step in repair.steps[:-1])
            ctx.ledger.admit_repaired(held.id, held.holder, summary)
            return False
        found = await repair_acts.ACTS[move.step](ctx, repair, at_most_s)
        ctx.ledger.end_step(held.id, held.holder, found.state, found.detail, found.incarnation)
    except (StaleError, ReplacedUnitError) as why:
        return _left_alone(ctx, held, str(why))
    get_run_logger().info("%s %s: %s %s", move.step.value, held.machine, found.state.value, found.detail)
    return True


async def _ask_person(ctx: Context, held: HeldRepair, repair: Repair, why: str) -> bool:
    """Make sure that the machine is out of service, then send a ticket; one that was not accepted is resent later."""
    machine = ctx.ledger.machine(held.machine)
    # Draining: a run that was killed in the middle of this left it so.
    if machine.job is None and machine.state in (MachineState.PROVISIONING, MachineState.DRAINING):
        await take_out(ctx, held.machine, f"repair failed: {why}"[:500], Scope.CLUSTER, machine.incarnation)
    sent = await repair_acts.ticket(ctx, repair, why, ctx.policy.repair.ticket_s)
    if sent.state is StepState.WORKED:
        ctx.ledger.close_repair(held.id, held.holder, RepairState.TICKET, why)
    else:
        ctx.ledger.end_step(held.id, held.holder, sent.state, sent.detail)
    return False


def _left_alone(ctx: Context, held: HeldRepair, why: str) -> bool:
    get_run_logger().warning("%s", why)
    with contextlib.suppress(StaleError):  # another run does it
        ctx.ledger.close_repair(held.id, held.holder, RepairState.CANCELLED, why)
    return False


@task(task_run_name="publish the repair of {held.machine}")
async def publish(held: HeldRepair) -> None:
    """Publish what was done."""
    repair = held.now
    lines = [
        f"- {step.step.value} {step.state.value}"
        f"{f' ({step.done_at - step.begun_at:.1f} s)' if step.done_at else ''}: {escape(step.said)}"
        for step in repair.steps
    ]
    await acreate_markdown_artifact(
        key=f"repair-{repair.id}",
        description=repair.summary,
        markdown=f"# Repair {repair.id} of {repair.machine}\n\n{escape(repair.why)}\n\n"
        + "\n".join(lines)
        + "\n",
    )


async def repaired(held: HeldRepair) -> HeldRepair:
    """Do the next step, one by one, until the repair is over or has to wait; publish it."""
    while (move := next_move(held)) is not None and await perform(held, move):
        pass
    await publish(held)
    return held


def finish(repairs: Sequence[HeldRepair]) -> State[Any]:
    """Return the run's final state: every repair in a line, and whether a person is needed at a machine."""
    tickets = any(held.now.state is RepairState.TICKET for held in repairs)
    summary = "; ".join(f"{held.machine}: {held.now.summary}" for held in repairs)
    return Completed(name="Needs human" if tickets else "Completed", message=summary or "nothing is due")

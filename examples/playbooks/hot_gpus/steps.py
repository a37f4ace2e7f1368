"""The steps that Holdfast does not bring: lower the clocks, put them back, watch."""

from __future__ import annotations

from typing import Any

from holdfast.errors import LimitError, UnavailableError
from holdfast.models.agent import Command
from holdfast.models.alert import Verdict
from holdfast.models.machine import Machine
from holdfast.operations import fleet
from holdfast.tasks.recovery_context import RecoveryContext
from prefect import task
from prefect.logging import get_run_logger

from hot_gpus.judge import judge


@task(task_run_name="lower the clocks for {case.job}")
async def lower_clocks(case: RecoveryContext) -> str:
    """Hold the hot machines' GPUs at the policy's clocks; what was done, in words.

    Raises:
        LimitError: the alerts name no machine, or more than may be acted on at once.
    """
    if case.done("watch"):
        return "clocks were lowered"
    hot, limit = _hot(case), case.ctx.policy.aggregate.limit(len(case.job_now().machines))
    if not 0 < len(hot) <= limit:
        raise LimitError(
            f"{len(hot)} machines are hot, at most {limit} are acted on: is the room's cooling all right?"
        )

    async def act() -> dict[str, Any]:
        return {"machines": await _send(case, "lock_clocks", {"mhz": case.values["mhz"]})}

    # Again in each attempt: one that ended before it has let the clocks go.
    done = await case.once("lower_clocks", _attempt(case), {"mhz": case.values["mhz"]}, act)
    return f"clocks of {', '.join(done['machines'])} lowered to {case.values['mhz']} MHz"


@task(task_run_name="put the clocks of {case.job} back")
async def restore_clocks(case: RecoveryContext) -> None:
    """Let the clocks go that this attempt lowered, or an earlier one that was killed.

    A machine that is gone is left. What was meant to be done is in the ledger before it is: so it is undone also
    where it was done half.
    """
    if not any(action.kind == "lower_clocks" for action in case.ctx.ledger.actions(case.incident_id)):
        return

    async def act() -> dict[str, Any]:
        answers = await fleet.ask(
            case.ctx,
            _accused(case),
            lambda agent, machine: agent.command(_command(case, machine, "lock_clocks", {})),
        )
        here = {name: each for name, each in answers.items() if not isinstance(each, UnavailableError)}
        return {"machines": list(fleet.all_or_raise(here))}

    await case.once("restore_clocks", _attempt(case), {}, act)


@task(task_run_name="watch the heat of {case.job}")
async def watch(case: RecoveryContext) -> Verdict:
    """Look at the GPUs for the policy's time; suspects are machines to which the heat came back."""

    async def act() -> dict[str, Any]:
        values, clock = case.values, case.ctx.clock
        earlier = _earlier(case)
        looks: list[dict[str, list[str]]] = []
        until = clock.now() + (0 if any(earlier.values()) else values["watch_s"])
        while clock.now() < until:
            await clock.sleep(values["look_s"])
            looks.append(await _throttling(case))
        found = judge(looks, earlier, round(values["settle_s"] / values["look_s"]))
        return found.model_dump(mode="json")

    verdict = Verdict.model_validate(await case.once("watch", "", {}, act))
    for line in verdict.evidence:
        get_run_logger().warning("%s", line)
    return verdict


def _attempt(case: RecoveryContext) -> str:
    return f"attempt-{case.attempt}"


def _hot(case: RecoveryContext) -> list[str]:
    """Machines of all alerts, those that joined later included; they serve the job still."""
    named = {alert.machine for alert in case.incident.alerts} | {case.machine}
    return [name for name in case.job_now().machines if name in named]


def _accused(case: RecoveryContext) -> list[Machine]:
    return [case.ctx.ledger.machine(name) for name in _hot(case)]


def _command(case: RecoveryContext, machine: Machine, name: str, values: dict[str, Any]) -> Command:
    return Command(
        job=case.job, epoch=case.broken_epoch, incarnation=machine.incarnation, name=name, values=values
    )


async def _send(case: RecoveryContext, name: str, values: dict[str, Any]) -> list[str]:
    answers = await fleet.ask(
        case.ctx, _accused(case), lambda agent, machine: agent.command(_command(case, machine, name, values))
    )
    return list(fleet.all_or_raise(answers))


async def _throttling(case: RecoveryContext) -> dict[str, list[str]]:
    answers = await fleet.ask(
        case.ctx,
        _accused(case),
        lambda agent, machine: agent.command(_command(case, machine, "gpu_heat", {})),
    )
    return {name: list(answer["throttling"]) for name, answer in fleet.all_or_raise(answers).items()}


def _earlier(case: RecoveryContext) -> dict[str, int]:
    """By accused machine: incidents of this class within the policy's memory, without an eviction at the end."""
    ledger, since = case.ctx.ledger, case.ctx.clock.now() - case.values["memory_s"]
    past = [
        incident
        for incident in ledger.incidents(job=case.job)
        if incident.incident_class is case.incident_class
        and incident.id != case.incident_id
        and incident.opened_at > since
    ]
    return {name: sum(name == incident.machine for incident in past) for name in _hot(case)}

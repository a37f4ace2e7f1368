"""Looks at a hang before and after its stacks are read: one that is over by then accuses no machine."""

from __future__ import annotations

from holdfast.errors import NotNeededError
from holdfast.models.agent import RankState
from holdfast.models.alert import Alert
from holdfast.operations import fleet
from holdfast.policies.counted import counted
from holdfast.policies.diagnose import hang_over
from holdfast.tasks.recovery_context import RecoveryContext

_LOOK_S = 1.0


async def watch(case: RecoveryContext) -> None:
    """Wait for a step of a job of which a stopped process runs again, as long as one may take.

    Raises:
        NotNeededError: it made one.
    """
    alert = hang_over.alert_of(case.incident.alerts, case.broken_epoch)
    if alert is None or not alert.evidence.get("stopped"):
        return
    clock = case.ctx.clock
    until = clock.monotonic() + hang_over.watch_s(alert)
    while (ranks := await _ranks(case)) and hang_over.runs_again(alert, ranks):
        _refuse(case, alert, ranks)
        if clock.monotonic() >= until:
            return
        await clock.sleep(_LOOK_S)


async def refuse(case: RecoveryContext) -> None:
    """Refuse to judge a job that has made steps since it was reported to hang.

    Raises:
        NotNeededError: it has.
    """
    alert = hang_over.alert_of(case.incident.alerts, case.broken_epoch)
    if alert is not None:
        _refuse(case, alert, await _ranks(case))


def _refuse(case: RecoveryContext, alert: Alert, ranks: list[RankState]) -> None:
    if since := hang_over.steps_since(alert, ranks):
        steps = counted(since, "step", "steps")
        raise NotNeededError(f"its ranks made {steps} since: the hang is over, and {case.job} trains on")


async def _ranks(case: RecoveryContext) -> list[RankState]:
    """Return the job's ranks; none unless all machines answer."""
    answers = await fleet.ask(
        case.ctx,
        case.machines_now(),
        lambda agent, _: agent.first_steps(case.job, case.broken_epoch, patience_s=0.0),
    )
    found = fleet.answered(answers)
    return [rank for run in found.values() for rank in run.ranks] if len(found) == len(answers) else []

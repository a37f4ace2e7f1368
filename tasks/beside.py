"""Step: restart first, diagnose beside the training. What the checks find is acted on at the next step boundary.

Where a rank died for the first time and the others keep their processes
(:mod:`holdfast.policies.restore.restart_first`). No check is left out. A check beside the training may fail because the
training has the memory or the links that it needs; so what it finds without being sure is looked at again with the job
stopped, before a machine is evicted.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Any

from prefect import task
from prefect.logging import get_run_logger

from holdfast.errors import HoldfastError, StaleError
from holdfast.models.agent import Fence
from holdfast.models.alert import Rung, Verdict
from holdfast.models.base import Frozen
from holdfast.models.history import ActionState
from holdfast.models.job import JobState
from holdfast.models.machine import Machine
from holdfast.operations import fleet, recurrence
from holdfast.operations.launch import Launched
from holdfast.policies.classify import suspects
from holdfast.policies.escalate import overtake
from holdfast.policies.escalate.ladder import since_progress
from holdfast.policies.restore import last_good
from holdfast.policies.restore import restart_first as policy
from holdfast.storage.ledger.one_view import one_view
from holdfast.tasks import escalation, history, late
from holdfast.tasks.diagnose import diagnose
from holdfast.tasks.pause import hold_at_boundary, pause
from holdfast.tasks.recovery_context import RecoveryContext
from holdfast.tasks.resume import resume, start

FIRST_STEP_S = 2.0
"""The first step has the machines to itself; when it does not come within this time the checks begin all the same."""
LOOK_S = 0.25


class BesideResult(Frozen):
    """The job after its diagnosis beside the training."""

    case: RecoveryContext
    """The case to go on with where the job stands: its broken epoch is the one that was stopped at a boundary."""
    verdict: Verdict
    trains: bool
    summary: str = ""
    """Part of the summary where it trains."""


async def restart_and_diagnose(case: RecoveryContext) -> BesideResult | None:
    """Restart the job and diagnose beside the training, where nothing asks for the diagnosis first (None).

    Raises:
        RecoveryError: the epoch that was started did not come up; the next attempt diagnoses first.
    """
    if not await _restarted(case):
        return None
    if _retracted(case):
        stopped = await stop_again(case, at_boundary=False)
        return BesideResult(case=stopped, verdict=await diagnose(stopped), trains=False)
    await escalation.climb(case)
    resumed, verdict, ended = await _both(case)
    if resumed and not verdict.suspects:
        detail = f"the search for the cause was ended: {ended}" if ended else "diagnosed beside the training"
        return BesideResult(
            case=case,
            verdict=verdict,
            trains=True,
            summary=f"no machine at fault; retried in place, {detail}; {resumed.summary}",
        )
    get_run_logger().warning("%s accused beside the training: the job is stopped again", verdict.named)
    stopped = await stop_again(case, at_boundary=resumed is not None)
    if _sure(stopped, verdict):
        return BesideResult(case=stopped, verdict=verdict, trains=False)
    confirmed = await diagnose(stopped)
    if confirmed.suspects:
        return BesideResult(case=stopped, verdict=confirmed, trains=False)
    resumed = await resume(stopped)
    detail = f"{verdict.named} failed a check beside the training, and none with the job stopped"
    return BesideResult(case=stopped, verdict=confirmed, trains=True, summary=f"{detail}; {resumed.summary}")


def present(case: RecoveryContext) -> RecoveryContext:
    """Return the case as it stands: with the epoch that was stopped again as the broken one, if one was."""
    paused = {action.key for action in case.ctx.ledger.actions(case.incident_id, "pause")}
    started = [int((action.result or {}).get("epoch", 0)) for action in case.done("start")]
    again = [
        epoch
        for epoch in started
        if epoch > case.broken_epoch and f"pause:{_stopped(case, epoch).life}" in paused
    ]
    return _stopped(case, max(again)) if again else case


async def stop_again(case: RecoveryContext, *, at_boundary: bool) -> RecoveryContext:
    """Stop the epoch that was started before the diagnosis was over; return the case to go on with.

    ``at_boundary``: it makes steps, and is held after one of them first, so that none is lost.
    """
    stopped = present(case)
    if stopped is case:
        stopped = _stopped(case, case.job_now().epoch)
    if case.job_now().state is JobState.RUNNING:
        case.ledger.set_job(case.job, state=JobState.RECOVERING, unless=JobState.STOPPED)
    if at_boundary:
        await hold_at_boundary(stopped)
    await pause(stopped)
    return stopped


def _stopped(case: RecoveryContext, epoch: int) -> RecoveryContext:
    return case.model_copy(update={"broken_epoch": epoch, "went_on": epoch})


async def _restarted(case: RecoveryContext) -> bool:
    """Restart the job if it may be restarted before its diagnosis; return whether it was."""
    if why := await first(case) if _kept(case) else "no rank kept its process":
        get_run_logger().info("diagnosed before the restart: %s", why)
        return False
    try:
        await start(case)
    except StaleError:
        raise
    except HoldfastError as error:
        get_run_logger().warning("not restarted before the diagnosis: %s", error)
        await _end_of_check_stores(case, case.job_now().epoch)
        return False
    return True


def _retracted(case: RecoveryContext) -> bool:
    """Return whether the ladder with all facts, unlike the gateway, asks for another rung than a retry."""
    if any(action.key == f"rung:{case.life}" for action in case.done("rung")):
        return False
    if present(case) is not case:
        return True
    by_gateway = any((action.result or {}).get("by") for action in case.done("first"))
    return by_gateway and escalation.decide(case).rung is not Rung.RETRY


@task(task_run_name="restart first?")
async def first(case: RecoveryContext) -> str:
    """Return why the job is diagnosed before it is restarted; empty: it is restarted first."""

    async def act() -> dict[str, Any]:
        why = policy.why_diagnosed_first(death(case), wanted=case.ctx.policy.keep_processes.restart_first)
        return {"diagnosed_first": why}

    return str((await case.once("first", case.life, {}, act))["diagnosed_first"])


@one_view()
def death(case: RecoveryContext) -> policy.DeathFacts:
    """Collect what is known of the death, from the ledger."""
    ctx, incident = case.ctx, case.incident
    known = policy.DeathFacts(
        incident_class=case.incident_class,
        kept=_kept(case),
        silent=tuple(_at_pause(case).get("unreachable", ())),
    )
    if policy.why_diagnosed_first(known, wanted=True):
        return known  # what the ladder would say does not matter, and takes time to find out
    past = history.past_incidents(ctx, incident)
    decision, (raised, cause) = escalation.decide(case), policy.own_end(incident.alerts)
    return known.model_copy(
        update={
            "again": int(case.again) + len(since_progress(past, ctx.policy.ladder.progress_steps)),
            "often": recurrence.often_or_regularly(ctx, incident),
            "rung": decision.rung,
            "data": decision.data,
            "raised": raised,
            "cause": cause,
            "accused": suspects.named(incident.alerts, None, case.job_now()),
        }
    )


def _kept(case: RecoveryContext) -> int:
    """Return how many ranks' processes wait for the next epoch; 0 where the job stands for long, or went on before."""
    wrong = (
        last_good.earliest_named(case.incident.alerts) is not None
    )  # numbers: what is in memory may be wrong
    return 0 if case.stands or case.went_on or wrong else int(_at_pause(case).get("kept", 0))


def _at_pause(case: RecoveryContext) -> Mapping[str, Any]:
    return next((a.result or {} for a in case.done("pause") if a.key == f"pause:{case.life}"), {})


async def _both(case: RecoveryContext) -> tuple[Launched | None, Verdict, str]:
    """See the epoch come up, and diagnose: return the epoch if it was seen, the verdict, and why the search was ended.

    Raises:
        RecoveryError: the epoch did not come up.
    """
    coming = asyncio.create_task(resume(case))
    searching: asyncio.Task[Verdict] | None = None
    falling: asyncio.Task[str] | None = None
    try:
        await asyncio.wait({coming}, timeout=FIRST_STEP_S)
        if coming.done():
            coming.result()
        searching = asyncio.create_task(diagnose(case))
        await asyncio.wait({coming, searching}, return_when=asyncio.FIRST_COMPLETED)
        if searching.done() and searching.result().suspects:
            return (coming.result() if coming.done() else None), searching.result(), ""
        resumed = await coming
        falling = asyncio.create_task(_falls(case, resumed.epoch))
        await asyncio.wait({searching, falling}, return_when=asyncio.FIRST_COMPLETED)
        if searching.done():
            return resumed, searching.result(), ""
        return resumed, Verdict(evidence=(falling.result(),)), falling.result()
    finally:
        for each in (coming, searching, falling):
            if each is not None and not each.done():
                each.cancel()
                with contextlib.suppress(asyncio.CancelledError, HoldfastError):
                    await each
        await _end(case)


async def _end(case: RecoveryContext) -> None:
    """Note the checks that were broken off, and end what they met in."""
    for action in case.ctx.ledger.actions(case.incident_id, "check", evidence=False):
        if action.state is ActionState.INTENT:
            case.ledger.fail(case.incident_id, action.key, "broken off")
    await _end_of_check_stores(case, case.broken_epoch)


async def _end_of_check_stores(case: RecoveryContext, epoch: int) -> None:
    """Fence ``epoch`` (again): with it end the stores where machines met for checks of it, and nothing newer."""

    def fence(agent: Any, machine: Machine) -> Any:
        command = Fence(
            job=case.job,
            epoch=epoch,
            incarnation=machine.incarnation,
            keep_s=case.keep_s,
            switch_s=case.ctx.policy.keep_processes.switch_s,
        )
        return agent.fence(command)

    await fleet.ask(case.ctx, case.machines_now(), fence)


async def _falls(case: RecoveryContext, epoch: int) -> str:
    """Return when an alert of the incident shows that ``epoch`` trains no more, with its description.

    Its own incident is opened for it once this one is closed.
    """
    while True:
        # An alert without an epoch is about a machine: the search itself looks for those.
        mine = [alert for alert in case.incident.alerts if alert.epoch == epoch]
        if overtake.ended(mine, epoch):
            kinds = ", ".join(dict.fromkeys(alert.kind.value for alert in mine))
            return f"epoch {epoch} trains no more ({kinds})"
        await asyncio.sleep(LOOK_S)


def _sure(case: RecoveryContext, verdict: Verdict) -> bool:
    """Return whether all suspects surely fail, so that no check has to show it again."""
    sure = {finding.machine for finding in verdict.findings if finding.sure and not finding.ok}
    return set(verdict.suspects) <= {*sure, *late.roots(case)}

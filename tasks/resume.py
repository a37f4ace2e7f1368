"""Step: start the next epoch from the newest state that every rank can reach, and see it make progress."""

from __future__ import annotations

from functools import partial
from typing import Any

from prefect import task
from prefect.logging import get_run_logger

from holdfast.errors import (
    DamagedError,
    LimitError,
    RecoveryError,
    StoreAwayError,
    WaitError,
)
from holdfast.models.classes import IncidentClass
from holdfast.models.job import FromScratch, JobState
from holdfast.operations import restore
from holdfast.operations.first_steps import first_steps
from holdfast.operations.launch import Launched, launch
from holdfast.policies.classify import sure_signs
from holdfast.policies.restore import from_zero, last_good
from holdfast.tasks.recovery_context import RecoveryContext
from holdfast.tasks.resize import ask_for_lacking, has_other_size, in_words, size_before
from holdfast.tasks.suspect import mark_suspect

_MOST_RECORDED = 20
"""Of a thousand ranks' sources that were refused, so many are recorded."""


async def resume(case: RecoveryContext) -> Launched:
    """Start the next epoch and verify it: every rank completes a step.

    Raises:
        LimitError: no saved state is usable, or too many could not be loaded: a person decides.
        RecoveryError: a rank failed again, or the first step did not come in time.
    """
    try:
        launched = await _up(case)
    except (LimitError, RecoveryError):
        await ask_for_lacking(case)
        raise
    await ask_for_lacking(case)
    return launched


async def _up(case: RecoveryContext) -> Launched:
    alerts = case.incident.alerts
    if last_good.earliest_named(alerts) is not None:
        # Whatever the incident was opened for: a number that is wrong may be reported after the rank that fell over it,
        # and one of an earlier step after another.
        bound = last_good.bound(alerts, case.last_good_step, by_hand=case.bound_by_hand)
        case = case.model_copy(update={"last_good_step": bound})
        await mark_suspect(case, "loss, gradient norm or state is wrong since then")
    most = case.ctx.policy.restore.most_unloadable
    launched, case, doubt = await _begin(case)
    unloadable: list[str] = []
    while why := await verify(case, launched.epoch):
        unloadable.append(f"checkpoint of step {launched.step} cannot be loaded: {_short(why)}")
        if len(unloadable) >= most:
            raise LimitError(
                f"{'; '.join(unloadable)}; after {most} states in a row it may be the code that does not fit them: "
                f"look at these, then `holdfast resume {case.job} --step N`, or send a code update"
            )
        launched = await start(case, after=launched.epoch)
    passed_over = (*launched.passed_over, *_passed_over(case, launched.epoch))
    return launched.model_copy(update={"unloadable": (*doubt, *unloadable), "passed_over": passed_over})


async def _begin(case: RecoveryContext) -> tuple[Launched, RecoveryContext, tuple[str, ...]]:
    """Start the job; return the epoch, the case with the bound that holds for it, and a doubt about its state, if any.

    Where a machine was evicted that computes wrong results, it goes on from before its numbers jumped: what that
    machine took part in is in every state since. So is what was learnt from data that is skipped from now on. Without
    any earlier state it goes on from what there is, and not from zero, whatever the job's ``from_scratch``: that is for
    jobs whose states are lost.
    """
    jumped = last_good.before_jump(case.incident.alerts, case.ctx.policy.detect.metrics.jump_steps)
    skips = any(action.key == f"skip:{case.life}" for action in case.done("skip"))
    proven = case.incident_class is IncidentClass.SILENT_CORRUPTION and (skips or bool(case.done("evict")))
    if jumped is None or not proven or case.bound_by_hand:
        return await start(case), case, ()
    known = jumped if case.last_good_step is None else min(jumped, case.last_good_step)
    bound = last_good.bound(case.incident.alerts, known, by_hand=False)
    before = case.model_copy(update={"last_good_step": bound})
    try:
        launched = await start(before, from_scratch=FromScratch.NEVER)
    except StoreAwayError:
        raise  # whether an older state is there is not known: it is tried again, and nothing younger is taken
    except LimitError as none:
        get_run_logger().warning("no state from before the jump is left: %s", none)
        launched = await start(case)
    if launched.step <= (bound or 0):
        return launched, before, ()
    none_older = f"no state up to step {bound} can be had"
    has = "learnt from the data that is skipped" if skips else "may have what the evicted machine computed"
    return launched, case, (f"{none_older}: that of step {launched.step} {has}",)


def _passed_over(case: RecoveryContext, epoch: int) -> tuple[str, ...]:
    """Return the sources that ranks of ``epoch`` could not take their state from, though they were cheaper."""
    verified = (each.result or {} for each in case.done("verify") if each.key == f"verify:e{epoch}")
    return tuple(str(why) for result in verified for why in result.get("passed_over", ()))


def _short(why: str) -> str:
    """Return its first line, for a summary."""
    return why.strip().partition("\n")[0][:300]


@task(task_run_name="start {case.job}")
async def start(
    case: RecoveryContext, after: int | None = None, from_scratch: FromScratch | None = None
) -> Launched:
    """Choose the state to restore, start all ranks, and move it to where it is needed meanwhile.

    ``after`` is an epoch that refused the state from which it was to resume; ``from_scratch`` goes before the job's
    own setting.
    """

    async def act() -> dict[str, Any]:
        # Processes that loaded part of a state that was refused are not kept.
        keep_s = case.keep_s if after is None else 0.0
        return (await _patiently(case, key, keep_s, from_scratch)).model_dump(mode="json")

    key = f"e{after or case.broken_epoch}{case.again_after}"
    done = await case.once("start", f"after-{key}", {"bound": case.last_good_step}, act)
    launched = Launched.model_validate(done)
    get_run_logger().info(
        "epoch %d from step %d (%s)", launched.epoch, launched.step, "; ".join(launched.reasons)
    )
    return launched


async def _patiently(
    case: RecoveryContext, key: str, keep_s: float, from_scratch: FromScratch | None
) -> Launched:
    """Launch; while a machine or store that the restore needs does not answer, retry after growing pauses.

    Each pause is an action of its own: a sign of life for the gateway, and in the account of the incident's time.
    A later attempt goes on counting where an earlier one was killed.

    Raises:
        LimitError: it did not answer within the policy's time.
    """
    ctx, reason = case.ctx, f"{case.incident_class} {case.incident_id}"
    while True:
        past = ctx.ledger.actions(case.incident_id, "wait")
        waits = [a for a in past if a.key.startswith(f"wait:{key}:")]
        waited_s = ctx.clock.now() - waits[0].begun_at if waits else 0.0
        try:
            return await launch(
                ctx,
                case.job,
                reason,
                incident_id=case.incident_id,
                bound=case.last_good_step,
                from_scratch=from_scratch,
                waited_s=waited_s,
                ledger=case.ledger,
                keep_s=keep_s,
            )
        except WaitError as away:
            pause_s = from_zero.pause_s(len(waits), ctx.policy.restore)
            get_run_logger().warning("again in %.0f s: %s", pause_s, away)
            await _wait(case, f"wait:{key}:{len(waits) + 1}", str(away), pause_s)


async def _wait(case: RecoveryContext, key: str, why: str, pause_s: float) -> None:
    ledger = case.ctx.ledger
    ledger.begin(case.incident_id, case.attempt, key, "wait", {"for": why, "s": pause_s}, case.lease)
    ledger.set_incident(case.incident_id, summary=f"waits: {why}")
    await case.ctx.clock.sleep(pause_s)
    ledger.finish(case.incident_id, key, {"waited_s": pause_s, "for": why})


@task(task_run_name="verify epoch {epoch}")
async def verify(case: RecoveryContext, epoch: int) -> str:
    """Wait until every rank has completed a step of ``epoch``; empty when all did.

    Returns:
        Why the state that it was to resume from could not be loaded: no plan names it again.

    Raises:
        RecoveryError: a rank failed, or no first step came within the policy's time.
    """

    async def act() -> dict[str, Any]:
        try:
            least_s = case.ctx.policy.recovery.first_step_timeout_s
            sign, at_fault = partial(_sign, case, epoch), partial(_at_fault, case, epoch)
            passed_over = await first_steps(case.ctx, case.job, epoch, least_s, sign=sign, at_fault=at_fault)
        except DamagedError as error:
            await _give_up_state(case, epoch, str(error))
            return {"epoch": epoch, "refused": str(error)}
        return {"epoch": epoch} | ({"passed_over": passed_over[:_MOST_RECORDED]} if passed_over else {})

    done = await case.once("verify", f"e{epoch}", {"epoch": epoch}, act)
    if refused := str(done.get("refused", "")):
        get_run_logger().warning("epoch %d: %s", epoch, refused)
        return refused
    # Not part of the act: an attempt that finds it done has taken the job up as recovering again.
    if case.job_now().state is JobState.RECOVERING:
        case.ledger.set_job(case.job, state=JobState.RUNNING, unless=JobState.STOPPED)
    return ""


def _at_fault(case: RecoveryContext, epoch: int) -> str:
    """Return which machine of the epoch was surely found at fault since its start, and why; empty: none was.

    Not what was known before: a person may have refused that eviction.
    """
    ctx = case.ctx
    since = next(
        (each.opened_at for each in ctx.ledger.epochs(case.job) if each.epoch == epoch), ctx.clock.now()
    )
    alerts = [
        each for each in ctx.ledger.alerts(case.incident_id) if each.recorded_at > since and each.firing
    ]
    found = sure_signs.find(sure_signs.of_present(alerts, case.incarnations()), ctx.policy.classify)
    return "; ".join(f"{name}: {why}" for name, why in found.items())


def _sign(case: RecoveryContext, epoch: int) -> None:
    """Record that a start that takes long is waited for: a sign of life for the gateway."""
    ledger, begins = case.ledger, f"starting:e{epoch}:"
    number = 1 + sum(a.key.startswith(begins) for a in ledger.actions(case.incident_id, "starting"))
    key = f"{begins}{number}"
    ledger.begin(case.incident_id, case.attempt, key, "starting", {"epoch": epoch}, case.lease)
    ledger.finish(case.incident_id, key, {"epoch": epoch})


async def _give_up_state(case: RecoveryContext, epoch: int, why: str) -> None:
    """Mark the state that ``epoch`` could not load, unless other code or another number of ranks was to load it.

    Raises:
        RecoveryError: the code was switched since the state was saved, or the incident changed the job's size: that is
            taken back first.
        LimitError: the job has no state of its own: what it starts from cannot be loaded.
    """
    source = case.job_now().spec.start_from
    if source is not None and not case.ctx.ledger.ever_saved(case.job):
        raise LimitError(f"{source.title}, from which job {case.job} starts, cannot be loaded: {_short(why)}")
    epochs = {each.epoch: each for each in case.ctx.ledger.epochs(case.job)}
    now, before = epochs[epoch], epochs.get(epoch - 1)
    if before is not None and before.code_version != now.code_version:
        raise RecoveryError(
            f"checkpoint of step {now.start_step} cannot be loaded by code version {now.code_version} (epoch "
            f"{before.epoch} ran {before.code_version}): {_short(why)}"
        )
    if has_other_size(case):
        # The script's merge and split may be at fault, or missing: at the former size each rank takes its own.
        size = in_words(len(now.machines))
        raise RecoveryError(
            f"checkpoint of step {now.start_step} cannot be loaded by {size} (the job had {size_before(case)}): "
            f"{_short(why)}"
        )
    await restore.give_up_state(case.ctx, case.job, now.start_step, f"refused: {why}", case.ledger)

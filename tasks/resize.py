"""Steps: change the number of machines of a job, asked for by a person or a schedule, or because machines are short."""

from __future__ import annotations

from typing import Any

from prefect import task
from prefect.logging import get_run_logger

from holdfast.errors import HoldfastError, NoStandbyError, RefusedError
from holdfast.models.history import ActionState
from holdfast.models.job import JobState
from holdfast.operations import resize
from holdfast.operations.provision import provision_for_now
from holdfast.operations.swap import at_hand
from holdfast.policies.counted import counted
from holdfast.policies.escalate import overtake
from holdfast.policies.join_names import join_names
from holdfast.policies.pool import elastic
from holdfast.policies.pool.machine_groups import group_of
from holdfast.tasks.recovery_context import RecoveryContext


def wanted(case: RecoveryContext) -> int:
    """Return the number of machines that the incident asks for.

    Raises:
        RefusedError: it names none, or the job cannot have so many.
    """
    asked = case.incident.machines_asked
    if not isinstance(asked, int) or asked < 0:
        raise RefusedError(
            f"job {case.job}: machines = {asked!r}: expected a whole number, 0 or more: `holdfast scale {case.job} N`"
        )
    if asked:
        resize.spec_for(case.job_now(), asked)
    return asked


async def take_up(case: RecoveryContext) -> tuple[int | None, str]:
    """Return the number of machines that is asked for, and why nothing is changed (then the number is None).

    For a job that is scaled to zero the machines are claimed, and it stays at zero where that fails.

    Raises:
        NoStandbyError: it is scaled to zero, and too few machines stand by.
    """
    try:
        machines = wanted(case)
        if holds_none(case):
            await claim(case, machines)
    except RefusedError as refused:
        leave_at_zero(case)
        return None, f"nothing was changed: {refused}"
    except NoStandbyError:
        leave_at_zero(case)
        raise
    if has_size(case, machines):
        return None, keep_size(case, machines)
    return machines, ""


async def shrink(case: RecoveryContext) -> None:
    """Drop slots that no standby can fill now, if the job may go on without them (:func:`ask_for_lacking`)."""
    job = case.job_now()
    if job.spec.elastic is None:
        return
    for action in case.ctx.ledger.actions(case.incident_id):
        # A run that was killed after it had shrunk the job, and before that was recorded.
        lost = action.intent.get("lacking", ())
        if action.kind == "shrink" and action.state is not ActionState.DONE and lost:
            size, dropped = int(action.intent["to"]), tuple(action.intent["dropped"])
            if size == len(job.machines) and not {*lost}.intersection(job.machines):
                shrunk = elastic.Shrunk(machines=size, dropped=dropped)
                await _drop(case, shrunk, list(lost), action.key.removeprefix("shrink:"))
    lacking = {slot: m.name for slot, m in enumerate(case.machines_now()) if not m.serves(case.job)}
    smaller = elastic.shrink(job.spec, frozenset(lacking), at_hand(case.ctx, list(lacking.values())))
    if smaller is not None:
        await _drop(case, smaller, sorted(lacking.values()), f"{case.life}:{smaller.machines}")


@task(task_run_name="shrink {case.job} to {smaller.machines} machines")
async def _drop(case: RecoveryContext, smaller: elastic.Shrunk, lacking: list[str], target: str) -> None:
    begun = case.begun("shrink", target)

    async def act() -> dict[str, Any]:
        job = case.job_now()
        result = {"from": job.spec.machines, "to": smaller.machines, "lacking": lacking}
        if len(job.machines) == smaller.machines and not {*lacking}.intersection(job.machines):
            return {**result, "from": begun.get("from", job.spec.machines)}  # it was done, and not recorded
        left = [name for slot, name in enumerate(job.machines) if slot not in smaller.dropped]
        case.ledger.set_size(case.job, left)
        return result

    intent = {
        "to": smaller.machines,
        "dropped": list(smaller.dropped),
        "from": case.job_now().spec.machines,
        "lacking": lacking,
    }
    done = await case.once("shrink", target, intent, act)
    get_run_logger().warning(
        "no standby for %s: %s on, of %d",
        join_names(lacking),
        counted(done["to"], "machine goes", "machines go"),
        done["from"],
    )


async def ask_for_lacking(case: RecoveryContext) -> None:
    """Ask for a machine in the place of each that the job does without, unless one is on its way.

    Once the job trains again: where machines are processes of one host, a new one takes its processors.
    """
    for name in [name for action in case.done("shrink") for name in (action.result or {}).get("lacking", ())]:
        try:
            await provision_for_now(case.ctx, group_of(name, case.ctx.policy.spare_pool))
        except HoldfastError as error:
            get_run_logger().warning("no machine was asked for in the place of %s: %s", name, error)


@task(task_run_name="claim machines for {case.job}")
async def claim(case: RecoveryContext, machines: int) -> None:
    """Claim standbys until ``machines`` serve the job, which runs on meanwhile.

    Raises:
        NoStandbyError: too few stand by; none was taken.
    """

    async def act() -> dict[str, Any]:
        resize.claim(case.ctx, case.ledger, case.job_now(), machines)
        return {"machines": machines}

    await case.once("claim", case.life, {"machines": machines}, act)


@task(task_run_name="resize {case.job} to {machines} machines")
async def place(case: RecoveryContext, machines: int) -> str:
    """Give the stopped job its new number of slots; return what was done."""
    job, incident = case.job_now(), case.incident
    want = job.spec.elastic.want if job.spec.elastic else job.spec.machines
    # As it was when this was begun: repeated, the job may have its new size already.
    before = {"from": len(job.machines), "want": want, **case.begun("resize", case.life)}

    async def act() -> dict[str, Any]:
        grown = any(alert.evidence.get("grown") for alert in incident.alerts)
        wished = not grown and machines == incident.machines_asked
        resize.place(case.ledger, case.job_now(), machines, wanted=wished)
        # What was wanted before: the time at this size is accounted by it.
        return {"from": before["from"], "to": machines} | ({"want": before["want"]} if wished else {})

    intent = {"machines": machines, "from": before["from"], "want": before["want"]}
    done = await case.once("resize", case.life, intent, act)
    return f"{in_words(done['to'])} instead of {done['from']}"


@task(task_run_name="scale {case.job} to zero")
async def to_zero(case: RecoveryContext) -> str:
    """Save the stopped job's newest step to S3 and give its machines back; return what was done."""

    async def act() -> dict[str, Any]:
        return {"step": await resize.to_zero(case.ctx, case.ledger, case.job, case.last_good_step)}

    done = await case.once("scale to zero", case.life, {}, act)
    return f"scaled to zero at step {done['step']}, which is in S3"


def size_before(case: RecoveryContext) -> int:
    """Return the number of machines before this incident changed it; the present one, if the job had none."""
    before = next((int(action.result["from"]) for action in case.done("resize") if action.result), 0)
    return before or case.job_now().spec.machines


def in_words(machines: int) -> str:
    """Return a size for a summary."""
    return counted(machines, "machine", "machines")


def has_size(case: RecoveryContext, machines: int) -> bool:
    """Return whether the job trains with so many machines already: a schedule asks for a size whatever the present one.

    Not where this incident began to change it, or where the job does not train: then it has to be started.
    """
    job = case.job_now()
    begun = case.again or case.round or case.begun("claim", case.life)
    trains = not overtake.ended(case.incident.alerts, case.broken_epoch)
    return trains and not begun and machines == job.spec.machines == len(job.machines)


def keep_size(case: RecoveryContext, machines: int) -> str:
    """Have the job keep the size that it has, if a person or a schedule asked for it; return what was found."""
    if not any(alert.evidence.get("grown") for alert in case.incident.alerts):
        case.ledger.want_size(case.job, machines)
    return f"it has {in_words(machines)} already"


def has_other_size(case: RecoveryContext) -> bool:
    """Return whether the job has a size that this incident gave it, and had another one to go back to."""
    return case.job_now().spec.machines != size_before(case)


def placed_back(case: RecoveryContext) -> bool:
    """Return whether the broken epoch had the size of before this incident: the size is not why it fell."""
    same = case.job_now().spec.machines == size_before(case)
    return same and not case.begun("resize", case.life)  # else it is being put back for this epoch's sake


def came_from_zero(case: RecoveryContext) -> bool:
    """Return whether this incident found the job without machines, and gave it some."""
    return any((action.result or {}).get("from") == 0 for action in case.done("resize"))


def holds_none(case: RecoveryContext) -> bool:
    """Return whether the job is scaled to zero."""
    return not case.job_now().machines


def leave_at_zero(case: RecoveryContext) -> None:
    """Put the state of a job back that was scaled to zero and is given no machines; leave any other job alone.

    One that was stopped meanwhile stays so.
    """
    if holds_none(case):
        case.ledger.set_job(case.job, state=JobState.SCALED_TO_ZERO, unless=JobState.STOPPED)


def fell_with(case: RecoveryContext) -> str:
    """Return which epoch did not come up, and with which machines."""
    return f"epoch {case.broken_epoch} on {join_names(case.job_now().machines)}"

"""Change the number of machines of a job: claim more, name those that run ranks, give back the rest; scale to zero."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from holdfast.errors import LimitError, RefusedError
from holdfast.models.job import ENDED, Job, JobSpec, JobState
from holdfast.models.machine import Machine, MachineState
from holdfast.models.missing import Missing
from holdfast.models.role_rules import own_machines
from holdfast.operations import flaps, fleet, swap
from holdfast.operations.context import Context
from holdfast.operations.persist import persist, triggered
from holdfast.operations.stop import give_back
from holdfast.storage.ledger import Ledger

UPLOAD_S = 600.0
"""Longest wait for the checkpoint from which a job that is scaled to zero goes on."""


def must_be_scalable(job: Job) -> None:
    """Check that a job's number of machines may be changed now.

    Raises:
        RefusedError: it has ended, or a person holds it.
    """
    if job.state in ENDED or job.state is JobState.PAUSED:
        first = "" if job.state is JobState.DONE else f": `holdfast resume {job.name}` first"
        raise RefusedError(
            f"job {job.name} is {job.state}: only a running job, or one at zero, can be scaled{first}"
        )


def spec_for(job: Job, machines: int, *, wanted: bool = False) -> JobSpec:
    """Return the job's spec with this number of machines; ``wanted``: as :meth:`.JobSpec.resized`.

    Raises:
        RefusedError: the job cannot have so many; the message has the reason.
    """
    if job.spec.elastic is None:
        if machines == job.spec.machines:
            return job.spec
        raise RefusedError(
            f"job {job.name}: machines = {machines}: expected {job.spec.machines}, or 0. It is not elastic: submit it "
            "with `machines: {min: ..., want: ..., max: ...}`"
        )
    try:
        return job.spec.resized(machines, wanted=wanted)
    except ValueError as error:
        raise RefusedError(f"job {job.name}: {_reason(error)}") from None


def _reason(error: ValueError) -> str:
    found = getattr(error, "errors", None)
    return str(found()[0]["ctx"]["error"]) if found else str(error)


def unplaced(ledger: Ledger, job: Job) -> list[Machine]:
    """Return the machines that serve the job's ranks without a slot: claimed for a larger size, or left over."""
    serving = ledger.machines(state=MachineState.ACTIVE, job=job.name, role="")
    return [machine for machine in serving if machine.name not in job.machines]


def left_over(job: Job, serving: Iterable[Machine]) -> list[Machine]:
    """Return the machines that serve the job's ranks without a slot, or a role that wants fewer; at zero, all.

    A job that is submitted again under its name may find some that the former one had.
    """
    wants = {} if job.state is JobState.SCALED_TO_ZERO else own_machines(job.spec.roles)
    left, kept = [], Counter[str]()
    for machine in serving:
        if machine.role:
            needed = kept[machine.role] < wants.get(machine.role, 0)
            kept[machine.role] += 1
        else:
            needed = machine.name in job.machines
        if not needed:
            left.append(machine)
    return left


def claim(ctx: Context, ledger: Ledger, job: Job, machines: int) -> None:
    """Claim standbys, of the kind of those that it has, until ``machines`` serve the job; safe to repeat.

    Raises:
        NoStandbyError: too few stand by; none was taken.
    """
    serving = len(ledger.machines(state=MachineState.ACTIVE, job=job.name, role=""))
    excluded = (
        swap.excluded(ctx, job.machines[0])
        if job.machines
        else flaps.of_the_pool(ledger, ctx.clock, ctx.policy)
    )
    ledger.claim_standbys(job.name, machines - serving, excluded)


def place(ledger: Ledger, job: Job, machines: int, *, wanted: bool = False) -> Job:
    """Give the job ``machines`` slots: those it has, then machines that were claimed for it; or its first ones.

    ``wanted``: a person or a schedule asked for this size, and the job does not grow back by itself.

    Raises:
        RefusedError: it cannot have so many, or too few serve it.
    """
    spec_for(job, machines, wanted=wanted)
    names = [*job.machines, *(machine.name for machine in unplaced(ledger, job))][:machines]
    if len(names) < machines:
        raise RefusedError(f"job {job.name}: {len(names)} machines serve it, not {machines}")
    try:
        return ledger.set_size(job.name, names, wanted=wanted)
    except ValueError as error:
        raise RefusedError(f"job {job.name}: {_reason(error)}") from None


async def release_unplaced(ctx: Context, job_name: str) -> None:
    """Give machines that serve the job without need back to the standby pool: see :func:`left_over`.

    Raises:
        HoldfastError: an unfit machine could not be taken out; the others are where they belong.
    """
    job = ctx.ledger.job(job_name)
    if left := left_over(job, ctx.ledger.machines(state=MachineState.ACTIVE, job=job_name)):
        await give_back(ctx, job, left)


async def to_zero(ctx: Context, ledger: Ledger, job_name: str, bound: int | None = None) -> int:
    """Save the newest step of a stopped job to S3, then give all its machines back; return that step. Safe to repeat.

    Raises:
        UnavailableError: a machine of the job does not answer.
        LimitError: the newest step did not come into S3 in time, or no step was saved; the job keeps its machines.
    """
    job = ledger.job(job_name)
    if job.machines:
        # One that was lost meanwhile is out of service: others may keep the copies of what it held.
        machines = [each for each in ledger.machines_named(job.machines) if each.serves(job_name)]
        settled = fleet.all_or_raise(await fleet.settle(ctx, machines, job_name, job.epoch))
        states = {name: each.state for name, each in settled.items()}
        newest = triggered(ctx, job, states, bound)
        if newest is not None:
            await persist(ctx, job, machines, states, bound)
            await _in_store(ctx, job_name, newest.step)
        elif ledger.max_step(job_name) and not _trusted(ctx, job_name):
            raise LimitError(f"job {job_name} is not scaled to zero: no step of it was saved", Missing.STATE)
        # The upload may take minutes, in which a person stops the job.
        ledger.set_job(job_name, state=JobState.SCALED_TO_ZERO, machines=(), unless=JobState.STOPPED)
    await release_unplaced(ctx, job_name)
    return max(_trusted(ctx, job_name), default=0)


async def _in_store(ctx: Context, job_name: str, step: int) -> None:
    deadline = ctx.clock.monotonic() + UPLOAD_S
    while step not in _trusted(ctx, job_name):
        if ctx.clock.monotonic() > deadline:
            raise LimitError(
                f"job {job_name} is not scaled to zero: step {step} did not come into S3 within {UPLOAD_S:.0f} s",
                Missing.STATE,
            )
        await ctx.clock.sleep(0.2)


def _trusted(ctx: Context, job_name: str) -> set[int]:
    """Return the steps in S3 that may be restored."""
    return {each.step for each in ctx.ledger.checkpoints(job_name, include_suspect=False)}

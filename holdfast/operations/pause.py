"""Stop a broken epoch for an incident: fence it everywhere, have its newest step saved, close it in the ledger."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from holdfast.models.alert import RecordedClass
from holdfast.operations.context import Context
from holdfast.operations.fence import Fenced, fence
from holdfast.operations.persist import persist_soon
from holdfast.policies.escalate import stop_grace
from holdfast.policies.restore import kept_processes
from holdfast.storage.ledger import Ledger


@dataclass(frozen=True)
class Broken:
    """The epoch to stop, and why."""

    job: str
    epoch: int
    incident_id: str
    incident_class: RecordedClass
    again: bool = False
    """Whether the incident brought the job up before, and it failed again."""
    last_good_step: int | None = None
    given_up: Collection[str] = ()
    """Machines that are not waited for long."""


async def stop_epoch(ctx: Context, ledger: Ledger, broken: Broken) -> Fenced:
    """Stop the ranks of the epoch on all machines of its job, and see that they are gone or out of their training."""
    job = ctx.ledger.job(broken.job)
    machines = ctx.ledger.machines_named(job.machines)
    fenced = await fence(
        ctx,
        machines,
        broken.job,
        broken.epoch,
        given_up=broken.given_up,
        grace_s=stop_grace.grace_s(job.spec, broken.incident_class),
        keep_s=kept_processes.wait_s(ctx.policy.keep_processes, broken.incident_class, again=broken.again),
    )
    persist_soon(ctx, job, machines, fenced.states, broken.last_good_step)
    ledger.close_epoch(broken.job, broken.epoch, f"paused by {broken.incident_id}", ctx.clock.now())
    return fenced


def result(ctx: Context, broken: Broken, fenced: Fenced) -> dict[str, Any]:
    """Return what the ledger keeps of it."""
    none = kept_processes.why_none(ctx.policy.keep_processes, broken.incident_class, again=broken.again)
    return {
        "unreachable": list(fenced.lost),
        "silent": list(fenced.silent),
        "kept": fenced.kept,
        "not_kept": {none or why: list(ranks) for why, ranks in fenced.not_kept.items()},
    }


def intent(ctx: Context, broken: Broken) -> dict[str, Any]:
    """Return the intent: the epoch, and the machines in the life that is meant."""
    machines = ctx.ledger.machines_named(ctx.ledger.job(broken.job).machines)
    return {"epoch": broken.epoch, "incarnations": {each.name: each.incarnation for each in machines}}

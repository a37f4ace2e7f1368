"""Take machines out of service within the limits, and check that they are out."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable, Collection, Sequence

from holdfast.errors import HoldfastError, LimitError, RecoveryError, ReplacedUnitError
from holdfast.models.job import Job
from holdfast.models.machine import Scope
from holdfast.models.missing import Missing
from holdfast.operations import swap
from holdfast.operations.context import Context
from holdfast.operations.once import Actor
from holdfast.policies.counted import counted
from holdfast.policies.escalate import breaker
from holdfast.policies.escalate.dead import go_uncounted
from holdfast.policies.join_names import join_names
from holdfast.policies.pool import repair
from holdfast.storage.ledger.evictions import Past

_log = logging.getLogger(__name__)


def ask_breaker(
    ctx: Context, job: Job, new: Sequence[str], incident_id: str, dead: Collection[str] = ()
) -> None:
    """Ask the breaker whether so many more machines of ``job`` may be evicted for an incident.

    ``dead`` are machines that are dead for sure (:mod:`holdfast.policies.escalate.dead`).

    Raises:
        LimitError: not now; the message names the time from which on.
    """
    if new:
        breaker_of(ctx, job, new, dead)(functools.partial(ctx.ledger.evictions, but=incident_id))


def uncounted(ctx: Context, job: Job, new: Sequence[str], dead: Collection[str]) -> tuple[str, ...]:
    """Return those of ``new`` that the breaker does not count: ``dead`` ones whose places standbys can take."""
    gone = tuple(name for name in new if name in dead)
    return gone if gone and _free(ctx, job, len(gone), swap.at_hand(ctx, gone), ctx.ledger.evictions) else ()


def _free(ctx: Context, job: Job, dead: int, standbys: int, past: Past) -> bool:
    """Return whether so many dead machines go uncounted; other jobs' dead ones of late may want the standbys, too."""
    now, policy = ctx.clock.now(), ctx.policy.breaker
    before = past(now - policy.job_window_s, job.name, counted=False)
    others = past(now - policy.window_s, counted=False)
    return go_uncounted(dead, len(before), len(job.machines), standbys - len(others))


def breaker_of(
    ctx: Context, job: Job, new: Sequence[str], dead: Collection[str] = ()
) -> Callable[[Past], None]:
    """Return the breaker's question, to be asked about evictions up to then."""
    policy, fleet_size = ctx.policy.breaker, ctx.ledger.fleet_size()
    gone = [name for name in new if name in dead]
    standbys = swap.at_hand(ctx, gone)

    def ask(past: Past) -> None:
        free = bool(gone) and _free(ctx, job, len(gone), standbys, past)
        wanted, now = len(new) - len(gone) if free else len(new), ctx.clock.now()
        if not wanted:
            return
        answers = (
            breaker.may_evict(past(now - policy.window_s), wanted, fleet_size, now, policy),
            breaker.may_evict_from_job(
                past(now - policy.job_window_s, job.name), wanted, len(job.machines), now, policy
            ),
        )
        for answer in answers:
            if not answer.allowed:
                raise LimitError(
                    f"not evicting {join_names(new)}: {_why_counted(gone, standbys, free=free)}{answer.reason}",
                    Missing.EVICTIONS,
                    answer.again_at,
                )

    return ask


def _why_counted(gone: Sequence[str], standbys: int, *, free: bool) -> str:
    if not gone or free:
        return ""
    dead = counted(len(gone), "machine is dead", "machines are dead")
    if standbys >= len(gone):
        return f"{dead}, as others were a short time before; "
    return f"{dead}, and {counted(standbys, 'standby', 'standbys')} could take over; "


async def take_out_for(actor: Actor, machine: str, reason: str, scope: Scope, incarnation: str) -> str:
    """Take a machine of an incident's job out of service, and record the repair that the alerts name, if any.

    Returns:
        Why nothing was done: the engine was faster, and the present machine of that name is another; empty: it is out.

    Raises:
        StaleError: another run holds the lease, or the machine serves another job or none.
        RecoveryError: it is still alive.
    """
    ctx = actor.ctx
    try:
        await take_out(
            ctx,
            machine,
            f"{actor.incident_id}: {reason}",
            scope,
            incarnation,
            job=actor.job,
            holder=actor.lease,
        )
    except ReplacedUnitError as error:
        ctx.ledger.let_go(machine, incarnation, actor.job, actor.lease)
        return str(error)
    order_repair(ctx, machine, actor.incident_id, incarnation)
    return ""


def order_repair(ctx: Context, machine: str, incident_id: str, incarnation: str) -> None:
    """Record, after an eviction, the repair that the verdict names, if it names one. The gateway has it begun."""
    if not repair.enabled(ctx.policy.repair, ctx.settings.driver):
        return
    incident = ctx.ledger.incident(incident_id)
    found = repair.asked(incident.alerts, machine, incident.reasons, ctx.policy.classify)
    if found is None:
        return
    asked, why = found
    try:
        ctx.ledger.open_repair(machine, incident_id, incarnation, asked, why)
    except HoldfastError as error:
        # The job's recovery does not wait for a repair; the machine stays out, as without one.
        _log.error("no repair of %s: %s", machine, error)


async def take_out(
    ctx: Context,
    machine: str,
    reason: str,
    scope: Scope,
    incarnation: str,
    *,
    job: str | None = None,
    holder: str = "",
) -> None:
    """Drain, evict and cordon one machine; return when the engine reports that it is out.

    The caller may have been suspended since it decided: the ledger checks the lease and the machine before and after,
    the driver checks what it would evict.

    Args:
        ctx: services.
        machine: its name.
        reason: for people.
        scope: the jobs that the cordon keeps away.
        incarnation: the one that is meant.
        job: that it must still serve.
        holder: the run that acts under that job's lease.

    Raises:
        ReplacedUnitError: the machine was restarted since; nothing was done to the new one.
        StaleError: another run holds the lease, or the machine serves another job or none.
        RecoveryError: it is still alive.
    """
    ctx.ledger.drain(machine, incarnation, scope, reason, job, holder)
    await asyncio.to_thread(ctx.driver.evict, machine, scope, reason, incarnation)
    if any(seen.alive for seen in await asyncio.to_thread(ctx.driver.machines) if seen.name == machine):
        ctx.ledger.drain(
            machine, incarnation, scope, reason, job, holder
        )  # by now the machine may belong to another job
        raise RecoveryError(f"machine {machine} still lives after its eviction")
    ctx.ledger.cordon(machine, incarnation, job, holder)

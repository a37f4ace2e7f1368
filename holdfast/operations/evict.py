"""Take one machine out of service, and check that it is out."""

from __future__ import annotations

import asyncio

from holdfast.errors import RecoveryError
from holdfast.models.machine import Scope
from holdfast.operations.context import Context


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
        AnewError: the machine was restarted since; nothing was done to the new one.
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

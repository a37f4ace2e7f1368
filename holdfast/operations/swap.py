"""A standby for a slot whose machine is out of service."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast.errors import NoStandbyError, UnknownError
from holdfast.models.machine import Machine, MachineState
from holdfast.operations import flaps
from holdfast.operations.context import Context
from holdfast.operations.provision import provision_for_now
from holdfast.policies.pool import topology
from holdfast.policies.pool.machine_groups import group_of
from holdfast.storage.ledger import Ledger


async def claim(ctx: Context, ledger: Ledger, job: str, taken: list[str], old: str) -> Machine:
    """Return a standby for the job in the place of ``old``, of its kind.

    First one that an attempt claimed and was killed before it could place it.
    """
    for machine in ledger.machines(state=MachineState.ACTIVE, job=job, role=""):
        if machine.name not in taken:
            return machine
    # A machine that the job released as innocent stands by with its own slot to return to.
    others = [name for name in taken if name != old]

    def one() -> Machine:
        return ledger.claim_standbys(job, 1, [*excluded(ctx, old), *others], nearest(ctx, old))[0]

    try:
        return one()
    except NoStandbyError:
        await provision_for_now(ctx, group_of(old, ctx.policy.spare_pool))
    deadline = ctx.clock.monotonic() + ctx.policy.standby.wait_s
    while True:
        try:
            return one()
        except NoStandbyError:
            if ctx.clock.monotonic() > deadline:
                raise NoStandbyError(
                    f"no standby for job {job} within {ctx.policy.standby.wait_s:.0f} s: add machines "
                    "(deployment `resize-standby-pool`), or release a repaired one (`holdfast release MACHINE`)"
                ) from None
        await ctx.clock.sleep(0.1)


async def place(ctx: Context, ledger: Ledger, job: str, slot: int, old: str) -> dict[str, Any]:
    """Give the slot of ``old`` to a standby, unless it has another machine already; return the act's result.

    Raises:
        NoStandbyError: none came within the policy's time.
    """
    machines = list(ledger.job(job).machines)
    there = machines[slot] if slot < len(machines) else ""  # the job may have shrunk since
    if there != old:
        return {"slot": slot, "from": old, "to": there}
    asked_at = ctx.clock.now()
    new = await claim(ctx, ledger, job, machines, old)
    waited_s = round(ctx.clock.now() - asked_at, 3)
    machines[slot] = new.name
    ledger.set_job(job, machines=tuple(machines))
    return {"slot": slot, "from": old, "to": new.name, "waited_s": waited_s}


def at_hand(ctx: Context, lacking: Sequence[str]) -> int:
    """Return how many of the machines ``lacking`` have a standby that can take their place now."""
    left = {machine.name for machine in ctx.ledger.machines(state=MachineState.STANDBY)}
    found = 0
    for old in lacking:
        if usable := sorted(left - {*excluded(ctx, old)}):
            left.discard(usable[0])
            found += 1
    return found


def nearest(ctx: Context, old: str) -> list[str]:
    """Return the standbys by how near they are to ``old``, as far as that is known."""
    standbys = ctx.ledger.machines(state=MachineState.STANDBY)
    try:
        here = ctx.ledger.machine(old)
    except UnknownError:
        return [each.name for each in standbys]  # it was given back for good
    return topology.nearest_first(here, standbys, ctx.policy)


def excluded(ctx: Context, old: str) -> list[str]:
    """Return the standbys that cannot take ``old``'s place: those of another group, and those that flap."""
    policy = ctx.policy.spare_pool
    flapping = flaps.of_the_pool(ctx.ledger, ctx.clock, ctx.policy)
    if not policy.groups:
        return flapping
    group = group_of(old, policy)
    standbys = ctx.ledger.machines(state=MachineState.STANDBY)
    return [*flapping, *(known.name for known in standbys if group_of(known.name, policy) != group)]

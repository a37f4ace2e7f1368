"""Placement of copies: the machine that keeps the copy of each machine's shards.

After ByteRobust section 6: the copy lies outside every TP, PP and DP group of the rank, so that evicting a whole
parallel group loses nothing; with a single kind of group (plain data parallelism), on the neighbour. Where the
machines' racks, switches or NVLink domains are known, it lies in another one first of all
(:mod:`holdfast.policies.restore.apart`).
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.errors import RefusedError
from holdfast.models.base import Frozen
from holdfast.models.job import Parallelism
from holdfast.models.location import Location
from holdfast.policies.diagnose.groups import groups, slots


class Backup(Frozen):
    """Slot ``i``'s shards are copied to slot ``mapping[i]``; every machine keeps exactly one other's."""

    mapping: dict[int, int]
    """Machine slot -> machine slot, a bijection without fixed points; empty for a single machine."""
    crosses_groups: bool
    """Every copy lies outside all parallel groups of its ranks."""
    reason: str
    in_domain: int = 0
    """Number of copies in a rack, switch or NVLink domain of their machine, as far as these are known: lost with it."""


def backups(
    machines: int, ranks_per_machine: int, parallelism: Parallelism, locations: Sequence[Location] = ()
) -> Backup:
    """Place the copies of ``machines`` slots.

    Args:
        machines: number of slots.
        ranks_per_machine: ranks of each.
        parallelism: how the ranks share the model.
        locations: domains of the slots' machines, by slot; empty: none is known.

    Raises:
        RefusedError: a count is below one.
    """
    if machines < 1 or ranks_per_machine < 1:
        raise RefusedError(
            f"backup placement: machines = {machines}, ranks_per_machine = {ranks_per_machine}; "
            "both must be at least 1"
        )
    if machines == 1:
        return Backup(mapping={}, crosses_groups=False, reason="a single machine has no peer: no copies")
    related = _related(machines, ranks_per_machine, parallelism)
    if any(locations):
        return _apart(related, locations)
    if (shift := _shift(machines, related)) is not None:
        return Backup(
            mapping={slot: (slot + shift) % machines for slot in range(machines)},
            crosses_groups=True,
            reason=f"{shift} slots further, outside every TP, PP and DP group of the ranks",
        )
    if all(len(others) == machines for others in related):
        return _neighbour(machines)
    return _assigned(machines, related)


def _apart(related: list[set[int]], locations: Sequence[Location]) -> Backup:
    from holdfast.policies.restore.apart import place  # noqa: PLC0415  (numpy: a tenth of a second)

    peers, in_domain, inside = place(related, locations)
    where = (
        "in another domain than the machine"
        if not in_domain
        else f"{in_domain} of {len(peers)} copies have to lie in a domain of their machine"
    )
    return Backup(
        mapping=dict(enumerate(peers)),
        crosses_groups=not inside,
        in_domain=in_domain,
        reason=f"{where}; {len(peers) - inside} of {len(peers)} outside every TP, PP and DP group of the ranks",
    )


def _related(machines: int, per: int, parallelism: Parallelism) -> list[set[int]]:
    """Return for each slot the slots that share a parallel group with one of its ranks, itself included."""
    related = [{slot} for slot in range(machines)]
    for touched in {slots(group.ranks, per) for group in groups(machines * per, parallelism)}:
        for slot in touched:
            related[slot] |= touched
    return related


def _shift(machines: int, related: list[set[int]]) -> int | None:
    for shift in range(1, machines):
        if all((slot + shift) % machines not in related[slot] for slot in range(machines)):
            return shift
    return None


def _neighbour(machines: int) -> Backup:
    return Backup(
        mapping={slot: (slot + 1) % machines for slot in range(machines)},
        crosses_groups=False,
        reason="every machine shares a parallel group with every other: the neighbour keeps the copy",
    )


def _assigned(machines: int, related: list[set[int]]) -> Backup:
    """Find the bijection with the fewest copies inside a group (a linear assignment)."""
    import numpy as np  # noqa: PLC0415  (rare, and it costs a tenth of a second)
    from scipy.optimize import linear_sum_assignment  # noqa: PLC0415

    cost = np.zeros((machines, machines))
    for slot, others in enumerate(related):
        cost[slot, list(others)] = 1
        cost[slot, slot] = machines + 1  # more than all other costs together: never on itself
    peers = linear_sum_assignment(cost)[1]
    inside = int(sum(peer in related[slot] for slot, peer in enumerate(peers)))
    return Backup(
        mapping={slot: int(peer) for slot, peer in enumerate(peers)},
        crosses_groups=inside == 0,
        reason=(
            "matched outside every TP, PP and DP group of the ranks"
            if inside == 0
            else f"{inside} of {machines} copies have to lie inside a parallel group of their ranks"
        ),
    )

"""What collectives recorded: which rank is behind in which process group, and who only waits for it.

PyTorch's flight recorder keeps the last collectives of every rank, by process group and sequence number. In a group
all members must issue the same numbers in the same order. The rank whose newest number is lowest has not come to
the collective that the others wait in: it, or what it waits for in another group, is the cause (BG: "the rank that
completes in no process group while others only wait").
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from holdfast.models.agent import FlightRecord
from holdfast.models.base import Frozen
from holdfast.models.job import Job
from holdfast.policies.listed import listed


class FlightVerdict(Frozen):
    """What the records say."""

    behind: tuple[int, ...] = ()
    """Ranks that others wait for and that themselves wait for nobody."""
    waiting: tuple[int, ...] = ()
    """Ranks inside a collective that is not complete."""
    suspects: tuple[str, ...] = ()
    """Machines of those behind, if they are few enough to mean something."""
    confidence: float = 0.0
    reasons: tuple[str, ...] = ()


def analyse(records: Sequence[FlightRecord], job: Job) -> FlightVerdict:
    """Find the ranks that the others wait for.

    Args:
        records: one per rank and process group, of as many ranks as left a record.
        job: its size and machines; records of other ranks are left out.
    """
    world = job.spec.world_size
    known = [record for record in records if record.rank < world]
    if not known:
        return FlightVerdict(reasons=("no rank left a record of its collectives",))
    by_group: dict[str, list[FlightRecord]] = defaultdict(list)
    for record in known:
        by_group[record.group].append(record)
    waiting = {record.rank for record in known if record.enqueued > record.completed}
    waited_for: set[int] = set()
    reasons: list[str] = []
    for group, members in sorted(by_group.items()):
        late = _late(members, world)
        if late:
            newest = max(member.enqueued for member in members)
            waited_for |= late
            reasons.append(
                f"group {group}: ranks {listed(sorted(late))} have not come to collective {newest}"
            )
        reasons += _mismatch(group, members)
    # A rank that lags because it waits itself is a victim, or as likely as those that it waits for: no cause shows.
    behind = waited_for - waiting
    silent = set(range(world)) - {record.rank for record in known}
    if not behind and waiting and silent and 2 * len(silent) < world:
        behind = silent
        reasons.append(f"ranks {listed(sorted(silent))} left no record while the others wait")
    machines = tuple(dict.fromkeys(job.machine_of(rank) for rank in sorted(behind)))
    clear = bool(behind) and 2 * len(behind) < world and bool(waiting - behind)
    return FlightVerdict(
        behind=tuple(sorted(behind)),
        waiting=tuple(sorted(waiting - behind)),
        suspects=machines if clear else (),
        confidence=0.9 if clear and len(machines) == 1 else 0.6 if clear else 0.0,
        reasons=tuple(reasons) or ("all ranks are at the same collective of every group",),
    )


def _late(members: Sequence[FlightRecord], world: int) -> set[int]:
    """Ranks of one group that issued fewer collectives than the furthest member, which waits."""
    newest = max(member.enqueued for member in members)
    if not any(member.enqueued == newest and member.completed < newest for member in members):
        return set()
    expected = {rank for member in members for rank in member.ranks if rank < world}
    at = {member.rank: member.enqueued for member in members}
    return {rank for rank in expected | at.keys() if rank in at and at[rank] < newest}


def _mismatch(group: str, members: Sequence[FlightRecord]) -> Iterable[str]:
    """Different operations under one number: the program, not a machine."""
    newest: dict[int, set[str]] = defaultdict(set)
    for member in members:
        newest[member.enqueued].add(member.operation)
    for number, operations in newest.items():
        named = sorted(operations - {""})
        if len(named) > 1:
            yield f"group {group}: collective {number} is {' and '.join(named)}: the ranks disagree, look at the code"

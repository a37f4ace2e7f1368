"""Records of collectives: which rank waits for which, and which is waited for and itself waits for none.

PyTorch's flight recorder keeps the last collectives of every rank, by process group and number. In a group all members
must issue the same numbers in the same order. A rank whose collective is not complete waits for those members that have
not come to it; such a chain of waits ends at the cause (Baige, "the rank that completes in no process group while
others only wait"). Where starts are recorded (``TORCH_NCCL_ENABLE_TIMING``) a rank comes to a collective when its GPU
does, not when its program issued it: a GPU that died with kernels queued has issued what it never came to.

Missing proof accuses no machine: gloo records no point-to-point operations, so ranks that wait in one look as if they
waited for none. Their stacks decide (``waiting``); else several such ranks are as likely as one another.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from holdfast.models.agent import FlightRecord
from holdfast.models.base import Frozen
from holdfast.models.job import Job
from holdfast.policies.config.diagnosis import AggregatePolicy
from holdfast.policies.config.policy import Policy
from holdfast.policies.diagnose.circles import on_circles
from holdfast.policies.diagnose.flight_groups import Recorded, by_group
from holdfast.policies.join_names import join_names

_TRIED = 8


class FlightVerdict(Frozen):
    """Result of the analysis of the records."""

    behind: tuple[int, ...] = ()
    """Ranks that others wait for and that themselves wait for no other."""
    waiting: tuple[int, ...] = ()
    """Ranks inside a collective that is not complete."""
    disagree: tuple[int, ...] = ()
    """Ranks that issued another operation than most of their group, or left one out: the program, not a machine."""
    suspects: tuple[str, ...] = ()
    """Machines of those behind, if they are few enough to be significant."""
    confidence: float = 0.0
    program: str = ""
    """Fault of the program that the records show: ranks issued collectives that do not fit together; empty: none."""
    reasons: tuple[str, ...] = ()


class _Cause(Frozen):
    ranks: frozenset[int] = frozenset()
    odd: frozenset[int] = frozenset()
    """Ranks whose program went another way than that of the others."""
    confidence: float = 0.0
    why: tuple[str, ...] = ()
    program: str = ""


def analyse(
    records: Sequence[FlightRecord],
    job: Job,
    policy: AggregatePolicy | None = None,
    waiting: Collection[int] = frozenset(),
) -> FlightVerdict:
    """Find the ranks that the others wait for.

    Args:
        records: one per rank and process group, of as many ranks as left a record.
        job: its size and machines; records of other ranks are left out.
        policy: how many machines may be suspected; None: the packaged one.
        waiting: ranks whose stacks are inside an operation that waits for others.
    """
    world = job.spec.world_size
    known = [record for record in records if record.rank < world]
    if not known:
        return FlightVerdict(reasons=("no rank left a record of its collectives",))
    groups = by_group(known, world)
    in_wait = {rank for group in groups for rank in group.waiting()}
    reasons = [line for group in groups for line in (*_late(group), *group.mismatches())]
    if disputed := next((line for group in groups for line in group.mismatches()), ""):
        odd = frozenset(rank for group in groups for rank in group.disagreeing())
        found = _Cause(odd=odd, program=disputed)
    else:
        found = _cause(groups, world, frozenset(in_wait), waiting, job)
    machines = tuple(dict.fromkeys(job.machine_of(rank) for rank in sorted(found.ranks)))
    few = bool(found.ranks) and 2 * len(found.ranks) < world and bool(in_wait - found.ranks)
    limit = (policy or Policy.load().aggregate).limit(len(job.machines))
    alone = len(job.machines) == 1
    clear = few and not alone and len(machines) <= limit
    reasons += found.why
    if few and alone:
        reasons.append("they are on the only machine of the job: as likely its program as the machine")
    elif few and not clear:
        reasons.append(
            f"they are on {len(machines)} machines, more than the limit of {limit}: a human decides"
        )
    return FlightVerdict(
        behind=tuple(sorted(found.ranks)),
        waiting=tuple(sorted(in_wait - found.ranks)),
        disagree=tuple(sorted(found.odd)),
        suspects=machines if clear else (),
        confidence=found.confidence if clear else 0.0,
        program=found.program,
        reasons=tuple(reasons) or ("all ranks are at the same collective of every group",),
    )


def _late(group: Recorded) -> Iterable[str]:
    late = group.late()
    if late:
        yield f"group {group.title}: ranks {join_names(sorted(late))} have not come to collective {group.newest}"


def _cause(
    groups: Sequence[Recorded], world: int, in_wait: frozenset[int], waiting: Collection[int], job: Job
) -> _Cause:
    """Try the surest evidence first, then weaker; the first that names a rank decides."""
    if lost := frozenset(rank for group in groups for rank in group.not_noted()):
        why = f"ranks {join_names(sorted(lost))} took part in later collectives than they know to be complete"
        return _Cause(ranks=lost, confidence=_sure(lost, job), why=(why,))
    recorded = {rank for group in groups for rank in group.recorded}
    waited_for = {rank for group in groups for rank in group.waited_for(recorded)}
    alive = frozenset(waited_for & recorded - in_wait - set(waiting))
    silent = frozenset(waited_for - recorded - set(waiting))
    unknown = frozenset(range(world)) - recorded - set(waiting)
    if not waited_for and in_wait and unknown and 2 * len(unknown) < world and not _placed(groups):
        silent = unknown
    why_silent = (
        (f"ranks {join_names(sorted(silent))} left no record while the others wait",) if silent else ()
    )
    if alive or silent:
        return _one_or_none(alive, silent, why_silent, job)
    return _stuck_inside(groups, job)


def _placed(groups: Sequence[Recorded]) -> bool:
    """Return whether members of groups are known: then one without a record that no rank waits for is no cause."""
    return any(group.members for group in groups)


def _one_or_none(
    alive: frozenset[int], silent: frozenset[int], why_silent: tuple[str, ...], job: Job
) -> _Cause:
    """Return the cause: sure on one machine; on several, any of them may wait for another without a record of it."""
    both = alive | silent
    machines = {job.machine_of(rank) for rank in both}
    if len(machines) == 1 or not alive:
        return _Cause(ranks=both, confidence=_sure(both, job), why=why_silent)
    why = f"ranks {join_names(sorted(both))} wait in no recorded collective: one of them may wait for another"
    return _Cause(why=(*why_silent, why))


def _sure(ranks: Collection[int], job: Job) -> float:
    return 0.9 if len({job.machine_of(rank) for rank in ranks}) == 1 else 0.6


def _stuck_inside(groups: Sequence[Recorded], job: Job) -> _Cause:
    """Find a collective that all members came to and none completes, while others wait: the cause is among them."""
    waits = {rank for group in groups for rank in group.blocked()}
    awaited = frozenset[int]().union(*(group.awaited for group in groups))
    for group in groups:
        stuck = group.stuck()
        # Who waits for them is none of them: they would wait themselves.
        if not stuck & awaited or stuck & waits:
            continue
        if len({job.machine_of(rank) for rank in stuck}) == 1:
            why = f"ranks {join_names(sorted(stuck))} are all in a collective of group {group.title} that does not end"
            return _Cause(ranks=frozenset(stuck), confidence=0.7, why=(why,))
    return _in_a_circle(groups)


def _in_a_circle(groups: Sequence[Recorded]) -> _Cause:
    """Find ranks that wait for one another in different groups: no machine does that to programs of one order.

    The odd one is late in its group alone; where others are as alone as it, it cannot be identified.
    """
    around_a_circle = on_circles(
        (rank, ahead) for group in groups for rank in group.waiting() if (ahead := group.blocks(rank))
    )
    late = sorted(
        {group.late() for group in groups} - {frozenset()}, key=lambda ranks: (len(ranks), sorted(ranks))
    )
    around = [ranks for ranks in late if around_a_circle.intersection(sorted(ranks)[:_TRIED])]
    if not around:
        return _Cause()
    fewest = [ranks for ranks in around if len(ranks) == len(around[0])]
    named = sorted({rank for ranks in fewest for rank in ranks})
    why = f"ranks {join_names(named)} and others wait for one another in different groups: look at the code"
    return _Cause(odd=fewest[0] if len(fewest) == 1 else frozenset(), why=(why,), program=why)

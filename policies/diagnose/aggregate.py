"""Aggregation analysis: from the stacks of a hanging job to the machines to evict.

Source: ByteRobust section 5 (group stacks by text, dominant groups are healthy, evict the parallel group that the
outliers share) and Baige ("the rank that completes in no process group while others only wait").

Ranks of different pipeline stages are compared only with their own stage. The answer goes from sure to statistical: a
stopped process; one that the kernel does not let go; the ranks that do not wait while all others do; the machine, else
the smallest parallel group, that the outliers share. Where all wait, and no smaller group than the whole job keeps the
outliers apart, no machine is named. It never names more machines than the policy's limit.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from holdfast.models.agent import StackDump
from holdfast.models.base import Frozen
from holdfast.models.job import Job
from holdfast.policies.config.diagnosis import AggregatePolicy
from holdfast.policies.config.policy import Policy
from holdfast.policies.diagnose import ended_parts
from holdfast.policies.diagnose.groups import ParallelGroup, groups, slots
from holdfast.policies.diagnose.stacks import (
    StackGroup,
    group_children,
    group_ranks,
    in_checkpoint,
    stopped,
    traced,
)
from holdfast.policies.join_names import join_names


class Aggregation(Frozen):
    """Result of the stack analysis."""

    groups: tuple[StackGroup, ...] = ()
    """Ranks with equal stacks, largest group first."""
    outliers: tuple[int, ...] = ()
    """Ranks that stand out."""
    suspects: tuple[str, ...] = ()
    """Machines to evict, within the limit; empty: the stacks accuse no machine."""
    confidence: float = 0.0
    shared_group: str = ""
    """Parallel group that was over-evicted, such as ``pp 3``; empty: none."""
    sure: bool = False
    """Whether the kernel does not let their processes go, which is more than standing out."""
    explained: bool = False
    """Whether their processes are stopped: that explains the hang, and proves nothing against a machine."""
    over_limit: bool = False
    """There are outliers, but on more machines than may be evicted at once: a human decides."""
    reasons: tuple[str, ...] = ()
    script: str = ""
    """Fault of the script, as far as the stacks show it; empty: none."""
    excuse: str = ""
    """Why the outliers stand out without a fault of their machines; empty: it may be a machine's."""
    unseen: tuple[int, ...] = ()
    """Outliers of which nothing is known but that no stack could be taken of them."""


class _Outliers(Frozen):
    ranks: tuple[int, ...]
    sure: bool
    why: str
    proof: bool = False
    """Whether it explains the hang by itself."""
    by_signal: bool = False
    """A signal stopped them, which no fault of a machine sends."""
    of_storage: bool = False
    """They wait for a device or a mount: on several machines at once it is what these share."""
    unseen: bool = False
    """No stack could be taken of them, and nothing else makes them stand out."""


def aggregate(
    stacks: Sequence[StackDump],
    job: Job,
    policy: AggregatePolicy | None = None,
    blocked: Collection[int] = frozenset(),
    made: Sequence[ParallelGroup] = (),
    *,
    wait: Collection[int] = frozenset(),
) -> Aggregation:
    """Analyse one dump of all ranks and their children.

    Args:
        stacks: dumps, of any machines; those of ranks outside the job are left out.
        job: its machines and parallelism.
        policy: limits; None: the packaged ones.
        blocked: ranks that were seen waiting in the kernel for long; they count where they still do.
        made: parallel groups that were read from the job's processes, next to those of its job file.
        wait: ranks that are known to wait for others, whether or not a stack could be taken of them.
    """
    policy = policy or Policy.load().aggregate
    own = [dump for dump in stacks if dump.rank is None or dump.rank < job.spec.world_size]
    answer = _analysed(own, job, policy, blocked, made, wait)
    ended = ended_parts.by_rank(own)
    parts = ended_parts.in_words(ended)
    if answer.explained:
        excuse = "" if answer.suspects else answer.reasons[0]
        return answer.model_copy(update={"reasons": (*answer.reasons, *parts), "excuse": excuse})
    script = _apart_in_checkpoint(own) or ("" if answer.suspects else "; ".join(parts))
    excuse = "" if answer.sure else _held(answer.outliers, own) or ended_parts.excuse(answer.outliers, ended)
    reasons = (*answer.reasons, *parts)
    return answer.model_copy(update={"script": script, "excuse": excuse, "reasons": reasons})


def _analysed(  # noqa: PLR0917
    own: Sequence[StackDump],
    job: Job,
    policy: AggregatePolicy,
    blocked: Collection[int],
    made: Sequence[ParallelGroup],
    wait: Collection[int],
) -> Aggregation:
    world = job.spec.world_size
    found = group_ranks(own, job, policy)
    odd = _stopped(own) or _blocked(own, blocked) or _not_waiting(found, world)
    if odd is None and (odd := _minority(found)) and _may_be_victims(odd.ranks, found, job, made):
        why = f"{odd.why}, but all ranks wait in collectives: any of them may be the cause"
        return Aggregation(groups=found, outliers=odd.ranks, reasons=(why,))
    odd = odd or _children(own, job, policy) or _undumped(own, world, wait)
    if odd is None:
        return Aggregation(groups=found, reasons=(_why_none(found),))
    return _name_machines(found, odd, job, policy, made)


def _why_none(found: Sequence[StackGroup]) -> str:
    """Say why no rank stands out."""
    if ahead := _ahead(found):
        where = next(group.top for group in found if group.dominant and not group.waiting)
        return f"ranks {join_names(ahead)} wait in a barrier for the others, which are in {where}: any may be the cause"
    return "all stacks agree with their stage" if found else "no stacks"


def _apart_in_checkpoint(stacks: Sequence[StackDump]) -> str:
    """Return which ranks wait for others to call ``Session.checkpoint`` too; empty: none, or all do."""
    inside, outside = in_checkpoint(stacks)
    if not (inside and outside):
        return ""
    return (
        f"ranks {join_names(inside)} wait in Session.checkpoint() until ranks {join_names(outside)} call it too: "
        "every rank has to make every call of it"
    )


def _held(outliers: Collection[int], stacks: Sequence[StackDump]) -> str:
    """Return that the outliers are held by a debugger; empty: there is none that holds all of them."""
    if not outliers or not traced(stacks).issuperset(outliers):
        return ""
    are = "ranks {} are" if len(outliers) > 1 else "rank {} is"
    return (
        f"{are.format(join_names(outliers))} held by a debugger (state t): no machine is at fault; detach it"
    )


def _stopped(stacks: Sequence[StackDump]) -> _Outliers | None:
    halted = stopped(stacks)
    if not halted:
        return None
    return _Outliers(
        ranks=halted,
        sure=True,
        by_signal=True,
        why=f"processes of ranks {join_names(halted)} are stopped (state T), as by a signal from outside",
    )


def _blocked(stacks: Sequence[StackDump], seen: Collection[int]) -> _Outliers | None:
    """Find processes that a device or a mount does not let go."""
    still = {d.rank for d in stacks if d.rank in seen and not d.child and d.process_state[:1] in {"D", "Z"}}
    ranks = tuple(sorted(rank for rank in still if rank is not None))
    if not ranks:
        return None
    why = f"processes of ranks {join_names(ranks)} wait in the kernel and do not come back (state D)"
    return _Outliers(ranks=ranks, sure=True, proof=True, why=why, of_storage=True)


def _not_waiting(found: Sequence[StackGroup], world: int) -> _Outliers | None:
    """Find a few ranks that are elsewhere while all others wait in a collective."""
    busy = _ranks(group for group in found if not group.waiting)
    waiting = sum(len(group.ranks) for group in found if group.waiting)
    if not busy or waiting < len(busy) or waiting + len(busy) < 2:
        return None
    where = next(group.top for group in found if not group.waiting)
    return _Outliers(
        ranks=busy,
        sure=len(busy) == 1 and waiting == world - 1,
        why=f"{waiting} ranks wait in a collective, ranks {join_names(busy)} do not (in {where})",
    )


def _minority(found: Sequence[StackGroup]) -> _Outliers | None:
    """Find ranks that are elsewhere than most of their stage, but for those that wait for these in a barrier."""
    ahead = _ahead(found)
    odd = tuple(sorted(set(_ranks(group for group in found if not group.dominant)) - set(ahead)))
    if not odd or not any(group.dominant for group in found):
        return None
    return _Outliers(
        ranks=odd, sure=False, why=f"stacks of ranks {join_names(odd)} differ from most of their stage"
    )


def _ahead(found: Sequence[StackGroup]) -> tuple[int, ...]:
    """Return the ranks that wait in a barrier to which most others have not come; empty: none, or most wait.

    Nothing of the kind follows for other collectives: on a GPU the host of a rank at fault may stand in one while the
    hosts of all others wait for their devices on any line.
    """
    if all(group.waiting for group in found if group.dominant):
        return ()
    return _ranks(group for group in found if group.barrier and not group.dominant)


def _ranks(found: Iterable[StackGroup]) -> tuple[int, ...]:
    return tuple(sorted(rank for group in found for rank in group.ranks))


def _may_be_victims(
    odd: Sequence[int], found: Sequence[StackGroup], job: Job, made: Sequence[ParallelGroup]
) -> bool:
    """Return whether ``odd`` wait as all others do, and no parallel group of their own keeps them apart from these.

    They are a collective ahead or behind then, as ranks are when one of them no longer sends: which one is unknown.
    So it is where ranks have no stack: it may be these that all others wait for.
    """
    if not all(group.waiting for group in found):
        return False
    if sum(len(group.ranks) for group in found) < job.spec.world_size:
        return True
    shared = _shared_group(odd, job, made) if len(odd) > 1 else None
    return shared is None or len(_machines_of(shared.ranks, job)) == len(job.machines)


def _children(stacks: Sequence[StackDump], job: Job, policy: AggregatePolicy) -> _Outliers | None:
    """Compare data loaders and checkpoint writers, when the ranks themselves all look alike."""
    odd = _minority(group_children(stacks, job, policy))
    return odd.model_copy(update={"why": f"child processes: {odd.why}"}) if odd else None


def _undumped(stacks: Sequence[StackDump], world: int, wait: Collection[int]) -> _Outliers | None:
    dumped = {dump.rank for dump in stacks if dump.frames}
    missing = tuple(rank for rank in range(world) if rank not in dumped and rank not in wait)
    if not dumped or not missing or 2 * len(missing) >= world:
        return None
    why = f"no stack could be taken of ranks {join_names(missing)}"
    return _Outliers(ranks=missing, sure=False, why=why, unseen=True)


def _name_machines(
    found: tuple[StackGroup, ...],
    odd: _Outliers,
    job: Job,
    policy: AggregatePolicy,
    made: Sequence[ParallelGroup],
) -> Aggregation:
    limit = policy.limit(len(job.machines))
    machines = _machines_of(odd.ranks, job)
    unseen = odd.ranks if odd.unseen else ()
    answer = Aggregation(
        groups=found,
        outliers=odd.ranks,
        sure=odd.proof,
        explained=odd.by_signal,
        reasons=(odd.why,),
        unseen=unseen,
    )
    if len(machines) == 1:
        return _accuse(answer, machines, 0.98 if odd.sure else 0.85, "all outliers are on one machine")
    if odd.of_storage:
        return _because(answer, f"on {len(machines)} machines: what they share is at fault, such as storage")
    if not odd.sure and (shared := _shared_group(odd.ranks, job, made)) is not None:
        members = _machines_of(shared.ranks, job)
        if len(members) <= limit:
            why = f"outliers share {shared.name}: its {len(members)} machines go (limit {limit})"
            return _accuse(answer, members, 0.7, why, shared.name)
        answer = _because(answer, f"outliers share {shared.name}, {len(members)} machines, limit {limit}")
    if len(machines) <= limit:
        return _accuse(answer, machines, 0.95 if odd.sure else 0.6, "the outliers' own machines")
    if odd.by_signal:
        return _because(answer, f"on {len(machines)} machines: signals from outside, no machine is at fault")
    why = f"outliers are on {len(machines)} machines, more than the limit of {limit}: a human decides"
    return _because(answer, why).model_copy(update={"over_limit": True, "confidence": 0.3})


def _shared_group(ranks: Sequence[int], job: Job, made: Sequence[ParallelGroup]) -> ParallelGroup | None:
    """Return the parallel group on the fewest machines that holds all ``ranks``; else one whose machines hold them.

    A machine with several ranks is in several groups of a kind: all of its ranks stand out when one of them is stuck.
    What is on one machine is never widened to others in that way.
    """
    spec, wanted = job.spec, frozenset(ranks)
    known = (*groups(spec.world_size, spec.parallelism), *made)
    holding = [group for group in known if wanted <= frozenset(group.ranks)]
    touched = slots(ranks, spec.ranks_per_machine)
    if not holding or _everywhere(holding, job):
        on_machines = [group for group in known if touched <= slots(group.ranks, spec.ranks_per_machine)]
        holding += on_machines if len(touched) > 1 else []
    return min(holding, key=lambda group: len(_machines_of(group.ranks, job)), default=None)


def _everywhere(holding: Sequence[ParallelGroup], job: Job) -> bool:
    return all(len(_machines_of(group.ranks, job)) == len(job.machines) for group in holding)


def _machines_of(ranks: Sequence[int], job: Job) -> tuple[str, ...]:
    return tuple(dict.fromkeys(job.machine_of(rank) for rank in ranks))


def _accuse(
    answer: Aggregation, machines: tuple[str, ...], confidence: float, why: str, shared: str = ""
) -> Aggregation:
    changes = {"suspects": machines, "confidence": confidence, "shared_group": shared}
    return _because(answer, f"{why}: {join_names(machines)}").model_copy(update=changes)


def _because(answer: Aggregation, why: str) -> Aggregation:
    return answer.model_copy(update={"reasons": (*answer.reasons, why)})

"""Fail-slow: the parallel group that lags most often over several looks (ByteRobust section 5).

Every few seconds all stacks are taken and grouped; the group of ranks with most outliers gets a vote. After the last
round the group with most votes is evicted, if it was flagged in more than half of the rounds: one slow step is no
evidence, the same group again and again is. A rank that is a step ahead of those that wait gets no vote.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from holdfast.models.agent import StackDump
from holdfast.models.base import Frozen
from holdfast.models.job import Job
from holdfast.policies.config.diagnosis import AggregatePolicy
from holdfast.policies.diagnose.aggregate import Aggregation
from holdfast.policies.diagnose.groups import ParallelGroup, groups, slots


class SlowVote(Frozen):
    """The outcome of all rounds."""

    suspects: tuple[str, ...] = ()
    confidence: float = 0.0
    reasons: tuple[str, ...] = ()


def without_ahead(found: Aggregation, stacks: Sequence[StackDump]) -> Aggregation:
    """Return one look without the outliers that completed a step more than all ranks that wait.

    They left the collective in which the others still are: no rank waits for them. Which steps ranks had completed is
    known where steps take longer than a look.
    """
    steps = {dump.rank: dump.step for dump in stacks if dump.rank is not None and dump.step is not None}
    waiting = [
        steps[rank] for group in found.groups if group.waiting for rank in group.ranks if rank in steps
    ]
    if not waiting:
        return found
    left = tuple(rank for rank in found.outliers if rank not in steps or steps[rank] <= max(waiting))
    return found.model_copy(update={"outliers": left})


def on_several(rounds: Sequence[Aggregation], job: Job) -> bool:
    """Return whether a round counts whose outliers are on several machines: only a parallel group has them all."""
    return any(len(slots(outliers, job.spec.ranks_per_machine)) > 1 for outliers in _clear(rounds, job))


def flag(outliers: Sequence[int], job: Job, made: Sequence[ParallelGroup] = ()) -> str:
    """Return the parallel group with most of the outliers of one round (the smallest of several); empty: none.

    A machine is a group too: ``machine m2``. It is preferred to a parallel group with as many outliers.
    """
    if not outliers:
        return ""
    wanted = set(outliers)
    candidates = [(f"machine {name}", frozenset(job.ranks_of(name))) for name in job.machines]
    candidates += [(g.name, frozenset(g.ranks)) for g in _known(job, made)]
    name, ranks = max(candidates, key=lambda item: (len(item[1] & wanted), -len(item[1])))
    return name if ranks & wanted else ""


def decide(
    rounds: Sequence[Aggregation], job: Job, policy: AggregatePolicy, made: Sequence[ParallelGroup] = ()
) -> SlowVote:
    """Decide which machines to evict after the last round.

    Args:
        rounds: analyses of the looks.
        job: its machines and parallelism.
        policy: limits.
        made: parallel groups that were read from the job's processes, next to those of its job file.
    """
    votes = Counter(filter(None, (flag(outliers, job, made) for outliers in _clear(rounds, job))))
    if not votes:
        return SlowVote(reasons=(f"no rank stood out in {len(rounds)} looks at all stacks",))
    (name, count), *others = votes.most_common()
    counted = ", ".join(f"{group} {times}x" for group, times in votes.most_common(4))
    reasons = (f"stood out in {len(rounds)} looks: {counted}",)
    if 2 * count <= len(rounds) or (others and others[0][1] == count):
        return SlowVote(reasons=(*reasons, "none in more than half of them: no machine is accused"))
    machines = _machines(name, job, made)
    limit = policy.limit(len(job.machines))
    if len(machines) > limit:
        return SlowVote(reasons=(*reasons, f"{name} spans {len(machines)} machines, limit {limit}"))
    return SlowVote(suspects=machines, confidence=0.5 + 0.4 * count / len(rounds), reasons=reasons)


def _clear(rounds: Sequence[Aggregation], job: Job) -> list[tuple[int, ...]]:
    """Return the outliers of the rounds in which they are on less than half of the machines."""
    per = job.spec.ranks_per_machine
    return [one.outliers for one in rounds if 2 * len(slots(one.outliers, per)) < len(job.machines)]


def _known(job: Job, made: Sequence[ParallelGroup]) -> list[ParallelGroup]:
    return [*groups(job.spec.world_size, job.spec.parallelism), *made]


def _machines(name: str, job: Job, made: Sequence[ParallelGroup]) -> tuple[str, ...]:
    if name.startswith("machine "):
        return (name.removeprefix("machine "),)
    group = next(g for g in _known(job, made) if g.name == name)
    return tuple(dict.fromkeys(job.machine_of(rank) for rank in group.ranks))

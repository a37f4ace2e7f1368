"""Ranks that are slower than their peers, phase by phase.

Ranks wait for the slowest one, so in phases that wait all ranks but the straggler are slow: only few can be
stragglers. Peers are the ranks of one pipeline stage; stages differ by right.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import median

from pydantic import Field

from holdfast.models.base import Frozen
from holdfast.models.job import Parallelism
from holdfast.policies.config.thresholds import StragglerLimits
from holdfast.policies.diagnose.groups import stage_of


class RankPhases(Frozen):
    """Usual seconds of one rank in each phase of a step."""

    rank: int
    machine: str
    phases: Mapping[str, float] = Field(default_factory=dict)


class Straggler(Frozen):
    """A rank that is slow in one phase."""

    rank: int
    machine: str
    phase: str
    value: float
    median: float
    """Median of its peers, seconds."""
    factor: float


def stragglers(
    ranks: Sequence[RankPhases],
    world_size: int,
    parallelism: Parallelism,
    limits: StragglerLimits,
    waiting: frozenset[str] = frozenset(),
) -> list[Straggler]:
    """Judge one moment; return stragglers sorted by rank, then phase.

    Args:
        ranks: all ranks that reported their phases.
        world_size: of the job.
        parallelism: of the job.
        limits: thresholds.
        waiting: phases in which nothing is computed (checkpoint, evaluation): not judged.
    """
    peers: dict[tuple[int, str], list[RankPhases]] = defaultdict(list)
    for rank in ranks:
        for phase in rank.phases.keys() - waiting:
            peers[stage_of(rank.rank, world_size, parallelism), phase].append(rank)
    found = [each for (_, phase), group in peers.items() for each in _outliers(group, phase, limits)]
    return sorted(found, key=lambda each: (each.rank, each.phase))


def _outliers(group: Sequence[RankPhases], phase: str, limits: StragglerLimits) -> list[Straggler]:
    if len(group) < 3:
        return []
    usual = median(rank.phases[phase] for rank in group)
    spread = median(abs(rank.phases[phase] - usual) for rank in group)
    limit = max(limits.slower * usual, usual + limits.deviations * spread, usual + limits.least_s)
    slow = [rank for rank in group if rank.phases[phase] > limit]
    if len(slow) > limits.most_share * len(group):
        return []
    return [
        Straggler(
            rank=rank.rank,
            machine=rank.machine,
            phase=phase,
            value=rank.phases[phase],
            median=usual,
            factor=rank.phases[phase] / usual if usual > 0 else float("inf"),
        )
        for rank in slow
    ]

"""Which ranks form a parallel group, and which machines they touch."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product

from holdfast.models.base import Frozen
from holdfast.models.job import Parallelism


class Group(Frozen):
    """One parallel group."""

    kind: str
    """``tp``, ``pp`` or ``dp``."""
    index: int
    ranks: tuple[int, ...]

    @property
    def name(self) -> str:
        """Such as ``pp 3``."""
        return f"{self.kind} {self.index}"


def groups(world_size: int, parallelism: Parallelism) -> list[Group]:
    """All groups of more than one rank: TP, then PP, then DP.

    Ranks are numbered as :class:`~holdfast.models.job.Parallelism` says (TP fastest, then DP, then PP).
    """
    tp, pp, dp = parallelism.tp, parallelism.pp, parallelism.dp(world_size)

    def rank(p: int, d: int, t: int) -> int:
        return (p * dp + d) * tp + t

    tensor = [[rank(p, d, t) for t in range(tp)] for p, d in product(range(pp), range(dp))]
    pipeline = [[rank(p, d, t) for p in range(pp)] for d, t in product(range(dp), range(tp))]
    data = [[rank(p, d, t) for d in range(dp)] for p, t in product(range(pp), range(tp))]
    return [
        Group(kind=kind, index=index, ranks=tuple(ranks))
        for kind, listed in (("tp", tensor), ("pp", pipeline), ("dp", data))
        for index, ranks in enumerate(listed)
        if len(ranks) > 1
    ]


def stage_of(rank: int, world_size: int, parallelism: Parallelism) -> int:
    """Pipeline stage of ``rank``, from 0."""
    return rank // (parallelism.dp(world_size) * parallelism.tp)


def slots(ranks: Iterable[int], ranks_per_machine: int) -> frozenset[int]:
    """Machine slots that run ``ranks``."""
    return frozenset(rank // ranks_per_machine for rank in ranks)

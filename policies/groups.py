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


class Place(Frozen):
    """Where a rank stands in TP x PP x DP space, each from 0."""

    tp: int
    pp: int
    dp: int


def place_of(rank: int, world_size: int, parallelism: Parallelism) -> Place:
    """The coordinates of ``rank``: the inverse of :class:`~holdfast.models.job.Parallelism`'s numbering."""
    rest, t = divmod(rank, parallelism.tp)
    p, d = divmod(rest, parallelism.dp(world_size))
    return Place(tp=t, pp=p, dp=d)


def groups_of(rank: int, world_size: int, parallelism: Parallelism) -> list[Group]:
    """The groups of more than one rank that ``rank`` is in: TP, PP, DP; named as by :func:`groups`."""
    tp, pp, dp = parallelism.tp, parallelism.pp, parallelism.dp(world_size)
    at = place_of(rank, world_size, parallelism)
    tensor = [(at.pp * dp + at.dp) * tp + t for t in range(tp)]
    pipeline = [(p * dp + at.dp) * tp + at.tp for p in range(pp)]
    data = [(at.pp * dp + d) * tp + at.tp for d in range(dp)]
    found = (
        Group(kind="tp", index=at.pp * dp + at.dp, ranks=tuple(tensor)),
        Group(kind="pp", index=at.dp * tp + at.tp, ranks=tuple(pipeline)),
        Group(kind="dp", index=at.pp * tp + at.tp, ranks=tuple(data)),
    )
    return [group for group in found if len(group.ranks) > 1]


def stage_of(rank: int, world_size: int, parallelism: Parallelism) -> int:
    """Pipeline stage of ``rank``, from 0."""
    return rank // (parallelism.dp(world_size) * parallelism.tp)


def slots(ranks: Iterable[int], ranks_per_machine: int) -> frozenset[int]:
    """Machine slots that run ``ranks``."""
    return frozenset(rank // ranks_per_machine for rank in ranks)

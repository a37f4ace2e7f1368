"""Parallel groups: their ranks, and the machines that they touch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import product

from holdfast.models.base import Frozen
from holdfast.models.job import Parallelism

_Axes = dict[str, tuple[int, int]]
"""Size and stride by name, fastest first."""


class ParallelGroup(Frozen):
    """One parallel group."""

    kind: str
    """``tp``, ``pp``, ``dp``, ``cp`` or ``ep``; another name where it was read from process groups."""
    index: int
    ranks: tuple[int, ...]

    @property
    def name(self) -> str:
        """Such as ``pp 3``."""
        return f"{self.kind} {self.index}"


_KINDS = ("tp", "pp", "dp", "cp")


def groups(world_size: int, parallelism: Parallelism) -> list[ParallelGroup]:
    """Return all groups of more than one rank: TP, then PP, DP, CP, EP; numbered with the slowest other axis first."""
    axes = _axes(world_size, parallelism)
    by_kind = [(kind, _along((kind,), axes)) for kind in _KINDS]
    return [
        ParallelGroup(kind=kind, index=index, ranks=ranks)
        for kind, found in (*by_kind, ("ep", _experts(world_size, parallelism)))
        for index, ranks in enumerate(found)
        if len(ranks) > 1
    ]


@lru_cache(maxsize=64)
def _axes(world_size: int, parallelism: Parallelism) -> _Axes:
    sizes = {
        "tp": parallelism.tp,
        "cp": parallelism.cp,
        "dp": parallelism.dp(world_size),
        "pp": parallelism.pp,
    }
    found, stride = {}, 1
    for name in parallelism.order.split("-"):
        if name in sizes:
            found[name] = (sizes[name], stride)
            stride *= sizes[name]
    return found


def _along(kinds: tuple[str, ...], axes: _Axes) -> list[tuple[int, ...]]:
    """Return the groups of ranks that differ in ``kinds`` alone, in order."""
    steps = {name: range(0, size * stride, stride) for name, (size, stride) in reversed(axes.items())}
    others = product(*(steps[name] for name in steps if name not in kinds))
    own = [sum(at) for at in product(*(steps[name] for name in steps if name in kinds))]
    return [tuple(sum(base) + at for at in own) for base in others]


@lru_cache(maxsize=8)
def _experts(world_size: int, parallelism: Parallelism) -> tuple[tuple[int, ...], ...]:
    """Return the EP groups: parts of the ranks of CP and DP together, neighbours unless DP comes first in the order."""
    order = parallelism.order.split("-")
    found: list[tuple[int, ...]] = []
    for ranks in _along(("cp", "dp"), _axes(world_size, parallelism)) if parallelism.ep > 1 else ():
        count = len(ranks) // parallelism.ep
        if order.index("dp") < order.index("ep"):
            found += [ranks[at::count] for at in range(count)]
        else:
            found += [ranks[at * parallelism.ep :][: parallelism.ep] for at in range(count)]
    return tuple(found)


@lru_cache(maxsize=8)
def _expert_places(world_size: int, parallelism: Parallelism) -> dict[int, int]:
    """Return each rank's place in its EP group; those without one are left out."""
    return {rank: at for ranks in _experts(world_size, parallelism) for at, rank in enumerate(ranks)}


class RankPlace(Frozen):
    """Coordinates of a rank in the layout, each from 0."""

    tp: int
    pp: int
    dp: int
    cp: int = 0
    ep: int = 0


def place_of(rank: int, world_size: int, parallelism: Parallelism) -> RankPlace:
    """Return the coordinates of ``rank``: the inverse of :class:`~holdfast.models.job.Parallelism`'s numbering."""
    axes = _axes(world_size, parallelism)
    at = {kind: rank // axes[kind][1] % axes[kind][0] for kind in _KINDS}
    return RankPlace(**at, ep=_expert_places(world_size, parallelism).get(rank, 0))


def groups_of(rank: int, world_size: int, parallelism: Parallelism) -> list[ParallelGroup]:
    """Return the groups of more than one rank that ``rank`` is in; named as by :func:`groups`."""
    found = [_own(rank, kind, _axes(world_size, parallelism)) for kind in _KINDS]
    for index, ranks in enumerate(_experts(world_size, parallelism)):
        if rank in ranks:
            found.append(ParallelGroup(kind="ep", index=index, ranks=ranks))
    return [group for group in found if len(group.ranks) > 1]


def _own(rank: int, kind: str, axes: _Axes) -> ParallelGroup:
    size, stride = axes[kind]
    index = 0
    for name, (count, step) in reversed(axes.items()):
        index = index if name == kind else index * count + rank // step % count
    first = rank - rank // stride % size * stride
    return ParallelGroup(kind=kind, index=index, ranks=tuple(first + at * stride for at in range(size)))


def stage_of(rank: int, world_size: int, parallelism: Parallelism) -> int:
    """Return the pipeline stage of ``rank``, from 0."""
    size, stride = _axes(world_size, parallelism)["pp"]
    return rank // stride % size


def slots(ranks: Iterable[int], ranks_per_machine: int) -> frozenset[int]:
    """Return the machine slots that run ``ranks``."""
    return frozenset(rank // ranks_per_machine for rank in ranks)


def observed(members: Iterable[Sequence[int]], world_size: int) -> list[ParallelGroup]:
    """Return groups as the job's own processes made them: each set of ranks once, without groups of all ranks."""
    # First each list once: of a group of all ranks there are ten thousand, each as long.
    found = {tuple(sorted(set(ranks))) for ranks in {tuple(ranks) for ranks in members}}
    useful = sorted(ranks for ranks in found if 1 < len(ranks) < world_size and ranks[-1] < world_size)
    return [
        ParallelGroup(kind="process group", index=index, ranks=ranks) for index, ranks in enumerate(useful)
    ]

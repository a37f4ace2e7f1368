"""Comparison of replicas, which must hold the same weights and optimizer state, bit for bit: find the odd rank.

Data-parallel ranks apply the same reduced gradients to the same weights. A bit that flips afterwards, in the weights
of one of them or in the results computed from them, stays: it makes no number infinite and moves no loss. So the
digests of tensors with one name and box are compared between ranks of one place (the same TP, PP and EP coordinates).

Some differences are no fault: running statistics, averages that one rank keeps, weights between two averagings of
local SGD. So only state that was seen to agree in ``learn`` rounds in a row is compared, and:

* state that **moves** (changed between those rounds, on all ranks alike: trained weights and their state) and then
  differs is a fault at once. The value of more than half of at least three is right, and the others are odd; else the
  right one is unknown. Where most of the state differs without a majority, that is how the job trains: it is learned
  again from scratch;
* state that **stands still** (frozen weights) is a fault when it changed on less than half of the ranks, or on one of
  two, is the same in the next round again, and only a few paths did so at once. A copy that one rank keeps for itself
  changes again, or as a whole, and is not compared any more.

Not visible here: a gradient that was wrong before it was reduced reaches all ranks alike; sharded states
without replicas have nothing to be compared with.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pydantic import Field

from holdfast.models.base import Frozen
from holdfast.policies.config.thresholds import ReplicaLimits

AT_LEAST = 3
"""With fewer replicas none is the majority."""

Key = tuple[tuple[int, ...], str]
"""Place and path."""


@dataclass(frozen=True, slots=True)
class HeldState:
    """State of one rank at one step."""

    rank: int
    place: tuple[int, ...]
    """Its coordinates except for data parallelism: ranks of one place are replicas."""
    paths: tuple[str, ...]
    """Names of tensors, and the box where it is a part; sorted."""
    digests: Sequence[int]
    """One for each path."""


@dataclass(frozen=True, slots=True)
class KnownResults:
    """Results of earlier rounds for one path in one place."""

    agreed: int = 0
    """Rounds in a row in which all ranks had the same."""
    moved: int = 0
    """Of them: rounds in which it was another value than in the round before."""
    value: int | None = None
    """The value on which all ranks agreed last."""
    strange: tuple[tuple[int, int], ...] = ()
    """For state that stands still: ranks that have another value since the last round, and that value."""
    own: bool = False
    """Some rank keeps it for itself: it is not compared."""

    def moves(self, learn: int) -> bool:
        """Return whether it was seen often enough to agree while it changed."""
        return not self.own and self.agreed >= learn and self.moved >= learn - 1

    def stands(self, learn: int) -> bool:
        """Return whether it was seen often enough to agree, and never to change."""
        return not self.own and self.agreed >= learn and not self.moved


Learned = Mapping[Key, KnownResults]


class RoundResult(Frozen):
    """Result of one round."""

    odd: dict[int, tuple[str, ...]] = Field(default_factory=dict)
    """Ranks that differ from the majority, and where."""
    split: tuple[str, ...] = ()
    """Paths that differ without evidence which rank is right."""
    doubtful: bool = False
    """Something stands out that the next round will decide."""
    compared: int = 0
    """Paths that would have shown a difference; 0: nothing was learned yet."""
    by_design: tuple[str, ...] = ()
    """Paths that agreed before and differ as a whole: they are learned again from scratch."""

    @property
    def good(self) -> bool:
        """Whether everything that was compared is the same."""
        return not (self.odd or self.split or self.doubtful)


@dataclass
class _Place:
    """Differences in one place."""

    compared: int = 0
    moving: dict[str, Mapping[int, int]] = field(default_factory=dict)
    still: dict[str, Mapping[int, int]] = field(default_factory=dict)


def judge(
    held: Iterable[HeldState], learned: Learned, limits: ReplicaLimits
) -> tuple[RoundResult, dict[Key, KnownResults]]:
    """Compare the state of ranks at one step; also return what is known afterwards."""
    known = dict(learned)
    odd: defaultdict[int, set[str]] = defaultdict(set)
    split: list[str] = []
    by_design: list[str] = []
    compared, doubtful = 0, False
    for place, ranks in sorted(_by_place(held).items()):
        found = _look(place, ranks, known, limits.learn)
        compared += found.compared
        unclear = _unclear(found.moving)
        as_a_whole = unclear if len(unclear) > 1 and 2 * len(unclear) > found.compared else []
        by_design += as_a_whole
        for path, values in found.moving.items():
            if path not in as_a_whole:
                strange = _minority(values)
                split += [] if strange else [path]
                for rank in strange:
                    odd[rank].add(path)
            else:
                known[place, path] = KnownResults()
        doubtful |= _judge_still(place, found.still, known, odd, limits)
    by_rank = {rank: tuple(sorted(paths)) for rank, paths in sorted(odd.items())}
    return (
        RoundResult(
            odd=by_rank,
            split=tuple(sorted(split)),
            doubtful=doubtful,
            compared=compared,
            by_design=tuple(sorted(by_design)),
        ),
        known,
    )


def _by_place(held: Iterable[HeldState]) -> Mapping[tuple[int, ...], list[HeldState]]:
    found: defaultdict[tuple[int, ...], list[HeldState]] = defaultdict(list)
    for each in held:
        found[each.place].append(each)
    return found


def _look(
    place: tuple[int, ...], ranks: Sequence[HeldState], known: dict[Key, KnownResults], learn: int
) -> _Place:
    """Compare what was learned to be equal in ``place``; learn from the rest."""
    found = _Place()
    for path, values in _shared(ranks):
        before = known.get((place, path), KnownResults())
        moves, stands = before.moves(learn), before.stands(learn)
        found.compared += moves or stands
        if len(set(values.values())) == 1:
            known[place, path] = _agreed(before, next(iter(values.values())))
        elif moves:
            found.moving[path] = values
        elif stands:
            found.still[path] = values
        else:
            known[place, path] = KnownResults(own=before.own)
    return found


def _shared(ranks: Sequence[HeldState]) -> Iterator[tuple[str, Mapping[int, int]]]:
    """Yield the paths that all of several ranks hold, with the digest by rank."""
    if len(ranks) < 2:
        return
    paths = ranks[0].paths
    if all(each.paths == paths for each in ranks):
        numbers = [each.rank for each in ranks]
        for path, *values in zip(paths, *(each.digests for each in ranks), strict=True):
            yield path, dict(zip(numbers, values, strict=True))
        return
    by_path: defaultdict[str, dict[int, int]] = defaultdict(dict)
    for each in ranks:
        for path, value in zip(each.paths, each.digests, strict=True):
            by_path[path][each.rank] = value
    yield from ((path, values) for path, values in by_path.items() if len(values) > 1)


def _agreed(before: KnownResults, value: int) -> KnownResults:
    moved = before.value is not None and before.value != value
    return KnownResults(before.agreed + 1, before.moved + moved, value, own=before.own)


def _minority(values: Mapping[int, int]) -> list[int]:
    """Return the ranks that have another value than more than half of them; none when there is no such majority."""
    (right, votes), *_ = Counter(values.values()).most_common()
    if len(values) < AT_LEAST or 2 * votes <= len(values):
        return []
    return [rank for rank, value in values.items() if value != right]


def _unclear(moving: Mapping[str, Mapping[int, int]]) -> list[str]:
    return [path for path, values in moving.items() if not _minority(values)]


def _judge_still(
    place: tuple[int, ...],
    still: Mapping[str, Mapping[int, int]],
    known: dict[Key, KnownResults],
    odd: defaultdict[int, set[str]],
    limits: ReplicaLimits,
) -> bool:
    """Judge state that stood still until now; return whether the next round has to decide."""
    doubtful = False
    for path, values in still.items():
        before = known[place, path]
        strange = tuple(sorted((rank, v) for rank, v in values.items() if v != before.value))
        few = 2 * len(strange) < len(values) or (len(strange), len(values)) == (1, 2)
        if len(still) > limits.few or not few or before.strange not in ((), strange):
            known[place, path] = KnownResults(own=True)
        elif not before.strange:
            known[place, path] = replace(before, strange=strange)
            doubtful = True
        else:
            for rank, _ in strange:
                odd[rank].add(path)
    return doubtful

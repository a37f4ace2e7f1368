"""The order of all samples of a run, and what has to be read for any part of it. Pure.

It follows from the listing, the weights, the shuffles and the seed alone. Neither the number of ranks nor what was
read before has any part in it, so a position in it is one number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from holdfast.data.deal import Pick, dealt
from holdfast.data.mixing import ENDLESS, Mixing
from holdfast.data.source_order import Numbers, SampleRun, SourceOrder, Stretch


@dataclass(frozen=True)
class Part:
    """One source's part in a plan."""

    name: str
    windows: Sequence[Sequence[int]]
    """Rows of each split, by window."""
    shuffle: int
    """Samples that are shuffled together; 0: none."""
    quota: int
    """Its weight, as a whole number."""
    repeat: bool = False
    """It begins again at its end."""
    grows: bool = False
    """Windows may be added; the plan waits for them."""

    @property
    def total(self) -> int:
        """Samples that are known of it."""
        return sum(map(sum, self.windows))


@dataclass(frozen=True)
class Take:
    """Consecutive samples of a block of one source."""

    source: int
    epoch: int
    run: SampleRun


@dataclass(frozen=True)
class Reading:
    """Reads for a pick, and the order in which the samples of all takes are used (None: as read)."""

    takes: tuple[Take, ...]
    order: Numbers | None = None


class Plan:
    """The order of a run's samples."""

    def __init__(self, parts: Sequence[Part], *, seed: int, lanes: int, epochs: int | None = 1) -> None:
        """Define it.

        Args:
            parts: the sources.
            seed: of all shuffles and draws.
            lanes: into which the samples are dealt.
            epochs: passes through all sources, where each has an end; None: without end. Where some repeat and the
                others have an end: 1 or None.
        """
        self.parts, self.lanes = tuple(parts), lanes
        self._seed, self._epochs = seed, epochs
        self._era_of = lru_cache(maxsize=2)(self._era)

    @cached_property
    def endless(self) -> bool:
        """Whether some source has no end: then there is one epoch, which is never over."""
        return any(each.repeat or each.grows for each in self.parts)

    @cached_property
    def per_epoch(self) -> int:
        """Samples of an epoch."""
        return sum(each.total for each in self.parts)

    @cached_property
    def total(self) -> int | None:
        """Samples of the run; None without an end.

        Where some sources repeat, it ends with the last sample of those that do not: one small source alone would be
        trained on for ever.
        """
        if self._epochs is None or any(each.grows for each in self.parts):
            return None
        if not self.endless:
            return self.per_epoch * self._epochs
        if all(each.repeat for each in self.parts):
            return None
        ends = (self._era_of(0).end(lane) for lane in range(self.lanes))
        return max(((end - 1) * self.lanes + lane + 1 for lane, end in enumerate(ends) if end), default=0)

    def has(self, count: int) -> bool:
        """Return whether the first ``count`` samples of the run are all known."""
        if self.total is not None:
            return count <= self.total
        if not self.endless:
            return self.per_epoch > 0
        growing = [at for at, each in enumerate(self.parts) if each.grows]
        if not growing:
            return all(each.total for each in self.parts)
        era = self._era_of(0)
        return all(era.has(lane, dealt(count, lane, self.lanes)) for lane in range(self.lanes))

    def reading(self, pick: Pick) -> Reading:
        """Return what has to be read for consecutive samples of a lane."""
        takes: list[Take] = []
        orders: list[Numbers] = []
        first = pick.first
        ordered, read = False, 0
        while first < pick.last:
            epoch = self._epoch_of(pick.lane, first)
            start, stop = (self._begun(each, pick.lane) for each in (epoch, epoch + 1))
            last = min(pick.last, stop)
            more, order = self._era_of(epoch).reading(pick.lane, first - start, last - start)
            takes += [Take(source, epoch, run) for source, run in more]
            ordered = ordered or order is not None
            orders.append((np.arange(last - first) if order is None else order) + read)
            read += last - first
            first = last
        return Reading(tuple(takes), np.concatenate(orders) if ordered else None)

    def stretches(self, take: Take) -> tuple[list[Stretch], Numbers | None]:
        """Return the rows of the block of a take, and the order in which they are used."""
        return self._era_of(take.epoch).orders[take.source].stretches(take.run.block)

    def known(self, lane: int, place: int) -> int:
        """Return how many of the lane's first ``place`` samples are known, as far as that is cheap: it or less."""
        if self.total is not None:
            return min(place, dealt(self.total, lane, self.lanes))
        if not self.endless or not any(each.grows for each in self.parts):
            return place
        return place if self._era_of(0).has(lane, place) else 0

    def _begun(self, epoch: int, lane: int) -> int:
        """Return the samples of the lane before an epoch."""
        if self.endless:
            return ENDLESS if epoch else 0
        return dealt(epoch * self.per_epoch, lane, self.lanes)

    def _epoch_of(self, lane: int, place: int) -> int:
        return 0 if self.endless else (place * self.lanes + lane) // self.per_epoch

    def _era(self, epoch: int) -> _Era:
        offsets, offset = [], epoch * self.per_epoch
        for each in self.parts:
            # With an end in sight the lanes' numbers of samples must differ by one at most: sources go on where the
            # one before stopped. Without, nothing may depend on how much there is.
            offsets.append(0 if self.endless else offset)
            offset += each.total
        orders = [
            SourceOrder(
                each.windows,
                seed=f"{self._seed}/{each.name}/{epoch}",
                lanes=self.lanes,
                shuffle=each.shuffle,
                repeat=each.repeat,
                offset=at,
            )
            for each, at in zip(self.parts, offsets, strict=True)
        ]
        return _Era(self.parts, orders, f"{self._seed}/{epoch}")


class _Era:
    """One epoch of a plan."""

    def __init__(self, parts: Sequence[Part], orders: list[SourceOrder], seed: str) -> None:
        self._parts, self.orders, self._seed = parts, orders, seed
        self._mixing_of = lru_cache(maxsize=None)(self._mixing)

    def reading(self, lane: int, first: int, last: int) -> tuple[list[tuple[int, SampleRun]], Numbers | None]:
        """Return the runs of places of the lane, and the order of their samples."""
        if len(self.orders) == 1:
            return [(0, run) for run in self.orders[0].runs(lane, first, last)], None
        mixing = self._mixing_of(lane)
        sources = mixing.sources(first, last)
        wanted = np.bincount(sources, minlength=len(self.orders)).tolist()
        counts = mixing.counts(first)
        found = [
            (at, run)
            for at, order in enumerate(self.orders)
            for run in order.runs(lane, counts[at], counts[at] + wanted[at])
        ]
        places = np.empty(len(sources), dtype=np.int64)
        places[np.argsort(sources, kind="stable")] = np.arange(len(sources))
        return found, places

    def has(self, lane: int, place: int) -> bool:
        """Return whether the samples before ``place`` are known."""
        counts = (place,) if len(self.orders) == 1 else self._mixing_of(lane).counts(place)
        return all(order.has(lane, count) for order, count in zip(self.orders, counts, strict=True))

    def end(self, lane: int) -> int:
        """Return the places of the lane up to the last sample of a source with an end, where another has none."""
        return self._mixing_of(lane).phases[-1].first

    def _mixing(self, lane: int) -> Mixing:
        amounts = [
            ENDLESS if each.repeat or each.grows else order.count(lane)
            for each, order in zip(self._parts, self.orders, strict=True)
        ]
        return Mixing([each.quota for each in self._parts], amounts, self._seed, lane)

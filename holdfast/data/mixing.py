"""From which source each place of a lane is taken. Pure.

In a row of places, each source has as many as its weight gives it, spread evenly by a seeded stratified draw. When a
source with an end is used up, the others go on with their weights among themselves: a new *phase*.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from holdfast.data.order import mixed_bits
from holdfast.data.source_order import Numbers, key_of
from holdfast.errors import SettingsError

ROW = 10_000
"""Places in which the weights hold exactly, to a part in this many."""
ENDLESS = 1 << 62


@dataclass(frozen=True)
class MixPhase:
    """Places of a lane between two ends of sources."""

    first: int
    counts: tuple[int, ...]
    """Samples of each source that the places before it took."""
    quotas: tuple[int, ...]
    """Samples of each source in a row; 0: it is used up."""
    key: int


def quotas(weights: Sequence[float], names: Sequence[str]) -> tuple[int, ...]:
    """Return whole numbers that add up to :data:`ROW`, in proportion to the weights and each at least 1.

    Raises:
        SettingsError: a weight is not a positive number.
    """
    for name, weight in zip(names, weights, strict=True):
        if not 0 < weight < float("inf"):
            raise SettingsError(f"weights[{name!r}] = {weight}: expected a positive number")
    whole = sum(weights)
    exact = [weight / whole * ROW for weight in weights]
    found = [max(1, int(each)) for each in exact]
    by_rest = sorted(range(len(exact)), key=lambda at: (found[at] - exact[at], at))
    for at in by_rest[: max(0, ROW - sum(found))]:
        found[at] += 1
    if sum(found) - ROW >= max(found):
        # Thousands of sources of next to no weight: one place is each one's, and the rest goes by weight.
        found = [1 + int(weight / whole * (ROW - len(exact))) for weight in weights]
    found[max(range(len(found)), key=found.__getitem__)] -= sum(found) - ROW
    return tuple(found)


class Mixing:
    """The sources of one lane's places."""

    def __init__(self, shares: Sequence[int], amounts: Sequence[int], seed: str, lane: int) -> None:
        """Define them.

        Args:
            shares: quotas of the sources.
            amounts: samples that the lane has of each source; :data:`ENDLESS` without an end.
            seed: of the draws.
            lane: the lane.
        """
        self._amounts, self._key = tuple(amounts), key_of(seed, lane)
        self._row_of = lru_cache(maxsize=4)(_row)
        self.phases = self._make(tuple(shares))

    def sources(self, first: int, last: int) -> Numbers:
        """Return the source of each place from ``first`` to ``last``."""
        parts = []
        while first < last:
            phase, end = self._phase(first)
            end = min(end, last)
            within = first - phase.first
            row, at = divmod(within, sum(phase.quotas))
            part = self._row_of(phase.quotas, phase.key + row)[at : at + end - first]
            parts.append(part)
            first += len(part)
        return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)

    def counts(self, place: int) -> tuple[int, ...]:
        """Return how many samples of each source the first ``place`` places take."""
        phase, _ = self._phase(place)
        rows, at = divmod(place - phase.first, sum(phase.quotas) or 1)
        part = self._row_of(phase.quotas, phase.key + rows)[:at] if at else np.empty(0, dtype=np.int64)
        more = np.bincount(part, minlength=len(phase.quotas))
        found = zip(phase.counts, phase.quotas, more.tolist(), strict=True)
        return tuple(before + rows * quota + each for before, quota, each in found)

    def _phase(self, place: int) -> tuple[MixPhase, int]:
        """Return the phase of a place, and where the next one begins."""
        for phase, following in zip(self.phases, self.phases[1:], strict=False):
            if place < following.first:
                return phase, following.first
        return self.phases[-1], ENDLESS

    def _make(self, shares: tuple[int, ...]) -> list[MixPhase]:
        first, counts = 0, [0] * len(shares)
        found: list[MixPhase] = []
        while True:
            left = [amount - count for amount, count in zip(self._amounts, counts, strict=True)]
            active = tuple(share if rest else 0 for share, rest in zip(shares, left, strict=True))
            phase = MixPhase(first, tuple(counts), active, key_of(str(self._key), len(found)))
            found.append(phase)
            ends = [self._end(phase, at, rest) for at, rest in enumerate(left) if 0 < rest < ENDLESS // 2]
            if not ends:
                return found
            length = min(ends)
            rows, at = divmod(length, sum(active))
            more = np.bincount(self._row_of(active, phase.key + rows)[:at], minlength=len(shares)).tolist()
            counts = [
                count + rows * quota + each for count, quota, each in zip(counts, active, more, strict=True)
            ]
            first += length

    def _end(self, phase: MixPhase, source: int, rest: int) -> int:
        """Return the number of places of a phase up to the ``rest``-th of ``source``."""
        rows, at = divmod(rest - 1, phase.quotas[source])
        places = np.flatnonzero(self._row_of(phase.quotas, phase.key + rows) == source)
        return rows * sum(phase.quotas) + int(places[at]) + 1


def _row(shares: tuple[int, ...], key: int) -> Numbers:
    """Return the sources of one row of places: each source once in each of as many equal parts as it has places."""
    sources = np.repeat(np.arange(len(shares), dtype=np.int64), shares)
    if sum(share > 0 for share in shares) <= 1:
        return sources
    numbers = np.concatenate([np.arange(share) for share in shares])
    drawn = mixed_bits(np.arange(len(sources), dtype=np.uint64) + np.uint64(key % 2**63))
    places = (numbers + (drawn >> np.uint64(11)) / 2.0**53) / np.repeat(shares, shares)
    return sources[np.argsort(places, kind="stable")]

"""Readers of the shards of another number of ranks: a rank where a shard lies, or else the one with the fewest."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Sequence


class Readers:
    """The ranks of the coming epoch, and how many shards each is to read so far."""

    def __init__(self, homes: Sequence[str]) -> None:
        self._on: defaultdict[str, list[int]] = defaultdict(list)
        for rank, home in enumerate(homes):
            self._on[home].append(rank)
        self._given = [0] * len(homes)
        self._heap = [(0, rank) for rank in range(len(homes))]

    def on(self, machine: str) -> bool:
        """Return whether one runs on ``machine``."""
        return machine in self._on

    def take(self, machine: str) -> int:
        """Give a shard on ``machine`` to the rank with the fewest: of those there, or of all when none is."""
        there = self._on.get(machine)
        reader = min(there, key=lambda rank: (self._given[rank], rank)) if there else self._fewest()
        self._given[reader] += 1
        return reader

    def _fewest(self) -> int:
        # Counts only grow, so an entry that is out of date stands too far in front, never too far behind.
        while (now := self._given[self._heap[0][1]]) != self._heap[0][0]:
            heapq.heapreplace(self._heap, (now, self._heap[0][1]))
        return self._heap[0][1]

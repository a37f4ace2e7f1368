"""Placement of copies apart: the copy of a machine's shards lies in no domain that the machine is lost with.

With one copy beside the own one, in another rack (switch, NVLink domain), the loss of any one whole domain loses no
state. Possible wherever no domain holds more than half of a job's machines; elsewhere as few copies as can be lie in
their machine's domain.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from holdfast.models.location import Location

_ASSIGNED = 1024
"""With more machines the search for the best assignment would take longer than a recovery may."""
_STRAY = 50
"""One of so many machines may be away from its neighbours (a standby of another rack) before another shift is taken."""

Slots = np.ndarray[Any, np.dtype[np.int64]]


class Penalty:
    """The price of a copy on a slot: a shared domain outweighs all parallel groups, and is never outweighed by them."""

    def __init__(self, related: Sequence[set[int]], locations: Sequence[Location]) -> None:
        self.size = len(related)
        self._domains = _codes(locations)
        # In plain data parallelism all are of one group: none is better than another.
        self._related = None if all(len(others) == self.size for others in related) else related

    def of(self, slots: Slots, peers: Slots) -> Slots:
        """Return the price of the copy of each of ``slots`` on the peer at the same place of ``peers``."""
        price = (self._domains[:, slots] == self._domains[:, peers]).sum(axis=0) * (self.size + 1)
        if self._related is not None:
            pairs = zip(slots.tolist(), peers.tolist(), strict=True)
            price = price + np.fromiter(
                (peer in self._related[slot] for slot, peer in pairs), np.int64, len(slots)
            )
        own: Slots = np.where(
            slots == peers, (self.size + 1) * (self.size + 1) * (len(self._domains) + 1), price
        )
        return own

    def shared(self, peers: Slots) -> int:
        """Return how many copies lie in a domain of their machine."""
        same = self._domains == self._domains[:, peers]
        return int(same.any(axis=0).sum()) if len(self._domains) else 0

    def inside(self, peers: Slots) -> int:
        """Return how many copies lie inside a parallel group of their machine's ranks."""
        if self._related is None:
            return self.size
        return sum(int(peer) in self._related[slot] for slot, peer in enumerate(peers))


def place(related: Sequence[set[int]], locations: Sequence[Location]) -> tuple[list[int], int, int]:
    """Return for each slot the slot that keeps its copy, and how many copies share a domain, and a group, with it.

    A shift by the same number of slots for all, as far as it goes; single slots that it does not suit exchange their
    peers, so that one machine in another's place moves few copies.

    Args:
        related: for each slot the slots that share a parallel group with one of its ranks, itself included.
        locations: domains of the slots' machines.
    """
    penalty = Penalty(related, locations)
    slots = np.arange(penalty.size)
    best = _exchanged(penalty, _shifted(penalty, slots))
    price = int(penalty.of(slots, best).sum())
    if price and penalty.size <= _ASSIGNED:
        assigned = _assigned(penalty, slots, best)
        if int(penalty.of(slots, assigned).sum()) < price:
            best = assigned
    return [int(peer) for peer in best], penalty.shared(best), penalty.inside(best)


def _codes(locations: Sequence[Location]) -> Slots:
    """Return a row per level with the domain of each slot as a number; of unknown ones each has a number of its own."""
    levels = sorted({level for location in locations for level in location})
    # What all machines share (a core switch) separates no two places; it counts only where nothing else is known.
    between = [level for level in levels if len({location.get(level) for location in locations}) > 1]
    levels = between or levels
    codes = np.empty((len(levels), len(locations)), dtype=np.int64)
    for row, level in enumerate(levels):
        known: dict[str, int] = {}
        for slot, location in enumerate(locations):
            domain = location.get(level)
            codes[row, slot] = -1 - slot if domain is None else known.setdefault(domain, len(known))
    return codes


def _shifted(penalty: Penalty, slots: Slots) -> Slots:
    """Return the first shift that suits all but a few slots; else that with the least price."""
    few, found = max(1, penalty.size // _STRAY), (slots + 1) % penalty.size
    least = None
    for shift in range(1, penalty.size):
        peers = (slots + shift) % penalty.size
        prices = penalty.of(slots, peers)
        if int((prices > 0).sum()) <= few:
            return peers
        if least is None or int(prices.sum()) < least:
            least, found = int(prices.sum()), peers
    return found


def _exchanged(penalty: Penalty, peers: Slots) -> Slots:
    """Let pairs of slots exchange their peers while that lowers the price; of equal partners the nearest is taken."""
    peers, slots = peers.copy(), np.arange(penalty.size)
    for _ in range(3):
        prices = penalty.of(slots, peers)
        before = int(prices.sum())
        for slot in np.flatnonzero(prices > 0):
            price = penalty.of(slots, peers)
            if not price[slot]:
                continue
            mine = np.full(penalty.size, slot)
            after = penalty.of(mine, peers) + penalty.of(slots, np.full(penalty.size, peers[slot]))
            gain = price + price[slot] - after
            gain[slot] = 0
            if (most := int(gain.max())) > 0:
                able = np.flatnonzero(gain == most)
                other = able[np.argmin(np.abs(able - slot))]
                peers[slot], peers[other] = peers[other], peers[slot]
        if int(penalty.of(slots, peers).sum()) == before:
            break
    return peers


def _assigned(penalty: Penalty, slots: Slots, present: Slots) -> Slots:
    """Return a bijection of the least price, as near to the present one as that allows (a linear assignment)."""
    from scipy.optimize import linear_sum_assignment  # noqa: PLC0415  (costs a tenth of a second)

    cost = np.stack([penalty.of(np.full(penalty.size, slot), slots) for slot in slots]) * (penalty.size + 1)
    cost += 1
    cost[slots, present] -= 1
    found: Slots = linear_sum_assignment(cost)[1]
    return found

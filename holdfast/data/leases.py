"""Leases of splits: who reads what, up to which row, and what is served again. A pure state machine.

For workers that come and go (data workers, rollouts), as against ranks that know their parts of a plan. A worker
holds a lease of a split, *commits* how far its rows were used, and so renews the lease. A lease that ends (expired,
given back, its worker gone) is granted again from the committed row on, under a higher token; what the old holder
commits after that is refused. So each row is committed exactly once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from holdfast.errors import SettingsError, StaleError

Value = TypeVar("Value")
_PAGE = 1024
_PAGES = 64
"""Of tokens of ended leases that are remembered: an answer that was lost is asked for again within seconds."""


@dataclass(frozen=True)
class Lease:
    """Rows of a split that a worker may read until a time."""

    split: int
    token: int
    """Higher than that of every lease before it."""
    worker: str
    first: int
    """The first row to be read."""
    rows: int
    """Rows of the whole split."""
    until: float


@dataclass(frozen=True)
class Leases:
    """Splits that are free, leased or done. Every call returns what holds after it; nothing is changed in place.

    What a call copies follows from the number of workers, not from that of the splits: there may be millions.
    """

    rows: tuple[int, ...]
    """Of each split, in the order in which they are granted."""
    committed: Mapping[int, int]
    """Rows that were used of a split that is not done; none without an entry."""
    held: Mapping[int, Lease]
    freed: tuple[int, ...] = ()
    """Splits that came back: granted again before new ones."""
    next: int = 0
    """The first split that was never granted."""
    token: int = 0
    ended: Mapping[int, Mapping[int, tuple[int, int]]] = field(default_factory=dict)
    """Of the last leases that are over, their split and the row up to which they committed it, by page and token."""
    finished: int = 0
    """Rows of splits that are done."""

    @staticmethod
    def of(rows: Iterable[int]) -> Leases:
        """Return leases of splits with so many rows, none of them granted."""
        return Leases(tuple(rows), {}, {})

    def grown(self, rows: Iterable[int]) -> Leases:
        """Return them with more splits."""
        return replace(self, rows=(*self.rows, *rows))

    @property
    def done(self) -> bool:
        """Whether every row was committed."""
        return not self.held and not self.freed and self.next >= len(self.rows)

    @property
    def used(self) -> int:
        """Rows that were committed."""
        return self.finished + sum(self.committed.values())

    def upto(self, split: int) -> int:
        """Return how many rows of a split were committed."""
        if split in self.committed:
            return self.committed[split]
        served = split < self.next and split not in self.held and split not in self.freed
        return self.rows[split] if served else 0

    def grant(self, worker: str, now: float, length_s: float) -> tuple[Leases, Lease | None]:
        """Lease the next split to a worker; None: there is none now."""
        after = self.expired(now)
        if after.freed:
            split, after = after.freed[0], replace(after, freed=after.freed[1:])
        else:
            empty = (at for at in range(after.next, len(after.rows)) if after.rows[at])
            split = next(empty, len(after.rows))
            after = replace(after, next=min(split + 1, len(after.rows)))
            if split == len(after.rows):
                return after, None
        lease = Lease(
            split, after.token + 1, worker, after.committed.get(split, 0), after.rows[split], now + length_s
        )
        return replace(after, token=lease.token, held={**after.held, split: lease}), lease

    def commit(self, split: int, token: int, upto: int, now: float, length_s: float) -> Leases:
        """Note that the rows before ``upto`` were used, and renew; at its last row a split is done.

        The same commit again changes nothing. A lease whose time is over is its holder's until the next grant.

        Raises:
            StaleError: another lease of the split was granted since, or this one was given back.
            SettingsError: ``upto`` is before what was committed, or past the end.
        """
        lease = self.held.get(split)
        if lease is None or lease.token != token:
            over, last = self.ended.get(token // _PAGE, {}).get(token, (-1, -1))
            if over == split and upto <= last:
                return self  # its answer was lost
            raise StaleError(
                f"split {split}: token {token} is not that of its lease "
                f"({f'{lease.token}, of {lease.worker}' if lease else 'it has none'}): its rows from "
                f"{self.upto(split)} on are served to others"
            )
        before = self.committed.get(split, 0)
        if not before <= upto <= self.rows[split]:
            raise SettingsError(
                f"split {split}: commit of {upto} rows: expected {before} to {self.rows[split]}"
            )
        if upto == self.rows[split]:
            return replace(
                self,
                committed=_without(self.committed, split),
                held=_without(self.held, split),
                ended=self._over([replace(lease, first=upto)]),
                finished=self.finished + upto,
            )
        return replace(
            self,
            committed={**self.committed, split: upto},
            held={**self.held, split: replace(lease, first=upto, until=now + length_s)},
        )

    def give_back(self, split: int, token: int) -> Leases:
        """End a lease early; of one that has ended nothing changes."""
        lease = self.held.get(split)
        return self._ended([lease]) if lease is not None and lease.token == token else self

    def gone(self, worker: str) -> Leases:
        """End all leases of a worker."""
        return self._ended(each for each in self.held.values() if each.worker == worker)

    def expired(self, now: float) -> Leases:
        """End the leases whose time is over."""
        return self._ended(each for each in self.held.values() if each.until <= now)

    def freed_all(self) -> Leases:
        """End all leases, as after a restore: their holders belong to the run before."""
        return self._ended(self.held.values())

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint or a journal has to keep, as plain data."""
        return {
            "committed": sorted([split, upto] for split, upto in self.committed.items()),
            "held": [[each.split, each.token, each.worker, each.until] for each in self.held.values()],
            "freed": list(self.freed),
            "next": self.next,
            "token": self.token,
            "ended": [
                [split, [[token, upto]]]
                for page in self.ended.values()
                for token, (split, upto) in page.items()
            ],
            "finished": self.finished,
        }

    @staticmethod
    def restored(rows: Iterable[int], state: Mapping[str, Any]) -> Leases:
        """Return the leases of :meth:`state`."""
        counts = tuple(rows)
        known: dict[int, int] = dict(state["committed"])
        committed = {split: upto for split, upto in known.items() if upto < counts[split]}
        # Releases before kept splits that are done among those.
        finished = state.get("finished", 0) + sum(known[split] for split in known.keys() - committed.keys())
        held = {
            split: Lease(split, token, worker, committed.get(split, 0), counts[split], until)
            for split, token, worker, until in state["held"]
        }
        over = [
            (token, split, upto) for split, each in state.get("ended", ()) for token, upto in sorted(each)
        ]
        ended: dict[int, dict[int, tuple[int, int]]] = {}
        for token, split, upto in over:
            ended.setdefault(token // _PAGE, {})[token] = split, upto
        freed, following, last = tuple(state["freed"]), state["next"], state["token"]
        return Leases(counts, committed, held, freed, following, last, ended, finished)

    def _ended(self, leases: Iterable[Lease]) -> Leases:
        gone = {each.split: each for each in leases}
        if not gone:
            return self
        held = {split: lease for split, lease in self.held.items() if split not in gone}
        return replace(self, held=held, freed=(*self.freed, *sorted(gone)), ended=self._over(gone.values()))

    def _over(self, leases: Iterable[Lease]) -> dict[int, Mapping[int, tuple[int, int]]]:
        more: dict[int, dict[int, tuple[int, int]]] = {}
        for each in leases:
            more.setdefault(each.token // _PAGE, {})[each.token] = each.split, each.first
        oldest = self.token // _PAGE - _PAGES
        ended = {page: known for page, known in self.ended.items() if page > oldest}
        for page, new in more.items():
            ended[page] = {**ended.get(page, {}), **new}
        return ended


def _without(known: Mapping[int, Value], split: int) -> dict[int, Value]:
    return {each: value for each, value in known.items() if each != split}

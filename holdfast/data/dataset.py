"""A data set whose position is one number: exactly once, at any number of ranks."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from holdfast.data.agree import Agreement, Alone, Grouped, agreement
from holdfast.data.deal import Pick, picks, share
from holdfast.data.files import File, Split
from holdfast.data.listing import Catalog, Listing
from holdfast.data.noticing import noticed
from holdfast.data.patience import PATIENCE_S, PlacePatience
from holdfast.data.plan import Part, Plan
from holdfast.data.reader import Reader
from holdfast.data.rows import Rows, cut
from holdfast.data.source_order import SourceOrder
from holdfast.data.sources import Mix, Source, as_mix
from holdfast.errors import SettingsError


class Dataset:
    """Batches of one order of samples that all ranks share, to be put into the state given to the Session.

    The order follows from the listing, the weights and the seed; its state is the number of samples that all ranks
    have taken together, and the listing. Both are equal on all ranks: the state is loaded at any number of ranks.
    """

    def __init__(
        self,
        source: Source | Mix,
        batch: int,
        *,
        seed: int = 0,
        epochs: int | None = 1,
        lanes: int = 8,
        drop_last: bool = False,
        rank: int | None = None,
        ranks: int | None = None,
        threads: int = 4,
        poll_s: float = 5.0,
        patience_s: float = PATIENCE_S,
        waiting: Callable[[], AbstractContextManager[Any]] = nullcontext,
        agree: Agreement | None = None,
    ) -> None:
        """Define it; files are listed at the first batch.

        Args:
            source: a source, or a mix of some.
            batch: samples of a step, of all ranks together.
            seed: of all shuffles.
            epochs: passes through the data; None: without end. 1 or None where a source repeats; no matter where one is
                followed.
            lanes: the order is dealt to so many readers; best a multiple of the largest number of ranks. Must stay.
            drop_last: leave out the samples at the end that do not fill a batch.
            rank: data-parallel rank; default that of the process group.
            ranks: their number.
            threads: that read ahead.
            poll_s: seconds between listings while a followed source has nothing new.
            patience_s: seconds for which a place that does not answer is asked again; 0: not at all.
            waiting: entered while it waits for either, such as ``lambda: session.phase("eval")``: then no step is
                expected.
            agree: default the process group's ranks.

        Raises:
            SettingsError: a number is out of range.
        """
        for name, value in (("batch", batch), ("lanes", lanes), ("threads", threads), ("epochs", epochs)):
            if value is not None and value < 1:
                raise SettingsError(f"Dataset: {name} = {value}: expected 1 or more")
        if (rank is None) != (ranks is None) or (rank is not None and not 0 <= rank < (ranks or 0)):
            raise SettingsError(
                f"Dataset: rank = {rank}, ranks = {ranks}: expected a rank below their number, or neither"
            )
        if not 0 <= patience_s < float("inf"):
            raise SettingsError(f"Dataset: patience_s = {patience_s}: expected seconds, 0 or more")
        self._patience_s = patience_s
        self.mix, self.batch, self.seed, self.epochs, self.lanes = as_mix(source), batch, seed, epochs, lanes
        kinds = {each.repeat for each in self.mix.sources.values() if not each.follow}
        if epochs not in (1, None) and kinds == {True, False}:
            raise SettingsError(
                f"Dataset: epochs = {epochs}: a source of the mix repeats: expected 1 (it ends with those that do not "
                "repeat) or None (without end)"
            )
        self.taken = 0
        """Samples that all ranks together have taken."""
        self.listing = Listing()
        self._drop_last, self._threads, self._poll_s, self._waiting = drop_last, threads, poll_s, waiting
        self._rank, self._ranks, self._agree = rank, ranks, agree
        self._plan: Plan | None = None
        self._catalogs: dict[str, Catalog] = {}
        self._reader: Reader | None = None

    def prepare(self) -> None:
        """List the files now, together with all ranks, rather than at the first batch: what is wrong shows here."""
        _ = self.plan  # no assertion: `python -O` would leave it out

    def splits(self) -> list[tuple[str, File, Split]]:
        """Return all splits with their sources, in the order in which they are leased.

        Each window's are shuffled; sources are mixed by their weights. Splits that are listed later come later.
        """
        found: list[tuple[int, float, str, File, Split]] = []
        for name, catalog in self.listing.catalogs(self.mix).items():
            order = SourceOrder(
                catalog.windows, seed=f"{self.seed}/{name}", lanes=1, shuffle=self.mix.sources[name].shuffle
            )
            rows = 0
            for at in order.all_splits():
                file, split = catalog.splits[at]
                place = (rows + split.rows / 2) / self.mix.quotas[name]
                rows += split.rows
                found.append((self.listing.group_of(name, file.path), place, name, file, split))
        return [(name, file, split) for _, _, name, file, split in sorted(found, key=lambda each: each[:3])]

    def settle(self) -> None:
        """Keep this rank and the number of ranks: worker processes have no process group to ask."""
        self._rank, self._ranks = self.place
        self._agree = Alone()

    @property
    def plan(self) -> Plan:
        """The order; lists the files at the first use, together with all ranks.

        Raises:
            SourceError: a place or a file is missing or cannot be read.
            SettingsError: a file is of no known format; a source has no sample at all.
        """
        if self._plan is None:
            if not self.listing.groups:
                self.grow()
            self._set_plan()
            if not self._restored:
                self._refuse_empty()
        assert self._plan is not None
        if not self.follows and self._plan.per_epoch == 0:
            places = ", ".join(each.place.name for each in self.mix.sources.values())
            raise SettingsError(f"{places}: no sample in any file that counts")
        return self._plan

    def __iter__(self) -> Iterator[Rows]:
        """Go on from the position; each batch counts as taken from the moment it is handed out."""
        return self

    def __next__(self) -> Rows:
        """Return this rank's rows of the next step."""
        size = self._next_size()
        if not size:
            raise StopIteration
        low, high = share(size, *self.place)
        rows = self._rows(self.taken, size, low, high)
        self.taken += size
        return rows

    def read(self, samples: range, batch: int | None = None) -> Rows:
        """Return samples by their places, such as ``session.share(step, batch).samples``; the step counts as taken.

        Args:
            samples: within one batch.
            batch: samples of every step; default that of the data set.

        Raises:
            SettingsError: they are not within one batch, or past the end.
        """
        batch = batch or self.batch
        first = samples.start - samples.start % batch
        if not samples or samples.step != 1 or samples.stop > first + batch:
            raise SettingsError(f"read({samples}): expected consecutive samples within a batch of {batch}")
        self._wait_for(first + batch)
        total = self.plan.total
        if total is not None and samples.stop > total:
            raise SettingsError(
                f"read({samples}): the data ends after {total} samples (epochs = {self.epochs})"
            )
        size = batch if total is None else min(batch, total - first)
        rows = self._rows(first, size, samples.start - first, samples.stop - first)
        self.taken = first + size
        return rows

    def lane(self, pick: Pick) -> Rows:
        """Return consecutive samples of a lane; the position stays."""
        return self._reading().rows([pick])

    def state_dict(self) -> dict[str, Any]:
        """Return the position, the listing, and what must not change for them to mean the same."""
        return {"taken": self.taken, "order": self._order(), "listing": self._packed()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a position, in the order of the listing that was saved with it.

        Raises:
            SettingsError: it is one of another order.
        """
        saved, now = json.loads(state["order"]), json.loads(self._order())
        for name in sorted(saved | now):
            if saved.get(name) != now.get(name):
                raise SettingsError(
                    f"Dataset: {name} is {now.get(name)}, the restored position has {saved.get(name)}: samples would "
                    "be skipped or repeated"
                )
        listing = Listing.unpacked(state["listing"]) if state["listing"] else Listing()
        self._refuse_passes(listing, int(state["taken"]))
        self.listing = listing
        self._kept = (self.listing, state["listing"])
        self.taken = int(state["taken"])
        self._restored = bool(self.listing.groups)
        self._plan = self._reader = None

    def close(self) -> None:
        """End the threads that read ahead."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what a worker process makes for itself."""
        return {**self.__dict__, "_plan": None, "_reader": None}

    _restored = False
    """The listing is that of a saved position: it counts as it is."""

    def _refuse_empty(self) -> None:
        """Refuse a source of which nothing was found: the others would be taken for it without a word.

        Raises:
            SettingsError: there is one, and it is not followed.
        """
        empty = [
            f"{name}: {each.place.name}" if name else each.place.name
            for name, each in self.mix.sources.items()
            if not each.follow and not self._catalogs[name].splits
        ]
        if empty:
            self._plan = None
            raise SettingsError(
                f"{', '.join(empty)}: no sample in any file that counts: look at the place, `where` and `format`, or "
                "leave the source out"
            )

    def _refuse_passes(self, listing: Listing, taken: int) -> None:
        """Refuse to follow on from a position in a second pass: in a stream it would be past samples still to come.

        Raises:
            SettingsError: it is one.
        """
        if not self.follows or len(self.mix.sources) > 1 or not listing.groups:
            return
        samples = sum(split.rows for each in listing.catalogs(self.mix).values() for _, split in each.splits)
        if taken > samples:
            raise SettingsError(
                f"Dataset: follow=True, and the restored position is after {taken} samples, in another pass through "
                f"the {samples} that were listed: as many new ones would be left out. A run of one pass goes over "
                "into a stream; after several begin without this data position, with where= for what is new"
            )

    _kept: tuple[Listing, bytes] = (Listing(), b"")

    def _packed(self) -> bytes:
        if self._kept[0] is not self.listing:
            self._kept = (self.listing, self.listing.packed())
        return self._kept[1]

    def _order(self) -> str:
        """Return all that the order follows from, but for the listing."""
        order: dict[str, Any] = {"seed": self.seed, "lanes": self.lanes}
        several = len(self.mix.sources) > 1
        if several:
            order["sources"] = list(self.mix.sources)
        for name, each in self.mix.sources.items():
            of = f" of {name}" if name else ""
            order |= {f"by{of}": each.by, f"window{of}": each.window, f"shuffle{of}": each.shuffle}
            order[f"repeat{of}"] = each.repeat
            if several:  # a single one may be followed from its end on, where it was not before
                order |= {f"share{of}": self.mix.quotas[name], f"follow{of}": each.follow}
        return json.dumps(order, sort_keys=True)

    @property
    def follows(self) -> bool:
        """Whether new files are waited for."""
        return any(each.follow for each in self.mix.sources.values())

    def _agreement(self) -> Agreement:
        # Ranks that begin the epoch in a new process make a group: those that kept theirs must make it with them.
        if self._agree is None or (isinstance(self._agree, Grouped) and self._agree.is_past):
            self._agree = agreement()
        return self._agree

    @property
    def place(self) -> tuple[int, int]:
        """This rank, and the number of ranks."""
        if self._rank is not None and self._ranks is not None:
            return self._rank, self._ranks
        return self._agreement().rank, self._agreement().ranks

    def _next_size(self) -> int:
        """Return the samples of the next step; waits for them where a source is followed."""
        self._wait_for(self.taken + self.batch)
        total = self.plan.total
        left = self.batch if total is None else max(0, min(self.batch, total - self.taken))
        return 0 if self._drop_last and left < self.batch else left

    def _wait_for(self, count: int) -> None:
        if not self.follows or self.plan.has(count):
            return
        with self._waiting():
            while not self.plan.has(count):
                if not self.grow():
                    time.sleep(self._poll_s)

    def grow(self) -> bool:
        """List again, together with all ranks; return whether there is anything new."""
        listing = noticed(
            self.mix, self.listing, self._agreement(), self._threads, PlacePatience(self._patience_s)
        )
        if listing is self.listing:
            return False
        self.listing = listing
        self._set_plan()
        return True

    def _set_plan(self) -> None:
        self._catalogs = self.listing.catalogs(self.mix)
        parts = [
            Part(
                name,
                self._catalogs[name].windows,
                each.shuffle,
                self.mix.quotas[name],
                repeat=each.repeat,
                grows=each.follow,
            )
            for name, each in self.mix.sources.items()
        ]
        self._plan = Plan(parts, seed=self.seed, lanes=self.lanes, epochs=self.epochs)
        if self._reader is not None:
            self._hand_over(self._reader)

    def _hand_over(self, reader: Reader) -> None:
        assert self._plan is not None
        reader.plan(self._plan, list(self._catalogs.values()), -(-self.lanes // self.place[1]) + 1)

    def _reading(self) -> Reader:
        if self._reader is None:
            self.prepare()
            self._reader = Reader(
                list(self.mix.sources.values()), self._threads, PlacePatience(self._patience_s), self._waiting
            )
            self._hand_over(self._reader)
        return self._reader

    def _rows(self, first: int, size: int, low: int, high: int) -> Rows:
        if low == high:  # at the end, fewer samples than ranks: no rows, of the right kind
            return cut(self._reading().rows(picks(first, size, 0, 1, self.lanes)), 0, 0)
        return self._reading().rows(picks(first, size, low, high, self.lanes))

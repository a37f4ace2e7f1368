"""The leases of a data set's splits, kept through the end of the process that keeps them.

Every act is a line of a journal before it is answered, and is done again from there by the next process: a kill
between any two lines loses and doubles nothing.
"""

from __future__ import annotations

import base64
import json
import os
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

from holdfast import durable
from holdfast.data.agree import Alone
from holdfast.data.dataset import Dataset
from holdfast.data.files import File, Split
from holdfast.data.leases import Lease, Leases
from holdfast.data.listing import Listing
from holdfast.data.sources import Mix, Source
from holdfast.errors import SettingsError, StaleError

_MOST_LINES = 10_000
"""Of a journal, before it is begun again: all of them are done again at the next start."""
_QUICK_S, _PART = 0.5, 9.0
"""New files are looked for at every request, unless that takes longer: then a tenth of the time."""


class LeaseBook:
    """Grants splits, and knows how far each was used. Any thread may call it."""

    def __init__(
        self,
        source: Source | Mix,
        *,
        journal: Path | None = None,
        seed: int = 0,
        length_s: float = 60.0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """List the splits, or go on from the journal.

        Args:
            source: a source, or a mix of some: their splits are granted window by window, mixed by weight.
            journal: a file of this book alone; None: it ends with the process.
            seed: of the shuffle of each window's splits.
            length_s: seconds that a lease lasts without a commit.
            clock: Unix seconds.

        Raises:
            SourceError: a place or a file is missing or cannot be read.
            SettingsError: a file is of no known format; the journal is another data set's.

        A book that has the same journal, in this process or another, does nothing more from then on.
        """
        self._data = Dataset(source, 1, seed=seed, agree=Alone())
        self._length_s, self._clock = length_s, clock
        self._lock = threading.RLock()
        self._splits: list[tuple[str, File, Split]] = []
        self._leases = Leases.of(())
        self.run = uuid.uuid4().hex
        """Names this book: what a lease of another one asks for is refused."""
        self._journal: IO[bytes] | None = None
        self._torn = False
        """The journal may end in a part of a line, or in one of an act that failed."""
        self._lines = 0
        self._look_at = 0.0
        known = journal is not None and journal.exists() and self._replay(journal)
        if not known:
            self._data.prepare()
            self._take_listing()
        if journal is not None:
            self._begin(journal)

    def grant(self, worker: str, have: tuple[int, ...] = ()) -> tuple[Lease, str, File, Split] | None:
        """Lease a split to a worker; None: there is none now.

        Args:
            worker: its name, which no other has.
            have: tokens of its leases that it knows of; one that it never learned of is granted again.
        """
        with self._lock:
            now = self._clock()
            for lease in self._leases.expired(now).held.values():
                if lease.worker == worker and lease.token not in have:
                    return (lease, *self._splits[lease.split])
            self._look_for_more(now)
            found = self._do("grant", worker, now)
            return None if found is None else (found, *self._splits[found.split])

    def commit(self, run: str, split: int, token: int, upto: int) -> None:
        """Note that the rows before ``upto`` were used; the lease goes on.

        Raises:
            StaleError: the split was granted to another since, or the book is another one.
        """
        with self._lock:
            self._require(run)
            self._do("commit", split, token, upto, self._clock())

    def give_back(self, run: str, split: int, token: int) -> None:
        """End a lease early."""
        with self._lock:
            if run == self.run:
                self._do("give_back", split, token)

    def gone(self, worker: str) -> None:
        """End all leases of a worker that is known to be gone."""
        with self._lock:
            self._do("gone", worker)

    @property
    def done(self) -> bool:
        """Whether every row was used, and no more are waited for."""
        with self._lock:
            return self._leases.done and not self._data.follows

    @property
    def used(self) -> int:
        """Rows that were committed."""
        with self._lock:
            return sum(self._leases.committed.values())

    def state_dict(self) -> dict[str, Any]:
        """Return the position, to be saved with the step whose rows were committed."""
        with self._lock:
            return {"listing": self._data.state_dict(), "leases": json.dumps(self._leases.state())}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go back to a position: all leases end, and what was committed after it is served again."""
        with self._lock:
            self._data.load_state_dict(state["listing"])
            self._splits, self._leases = [], Leases.of(())
            self._take_listing()
            rows = self._leases.rows
            self._leases = Leases.restored(rows, json.loads(state["leases"])).freed_all()
            self.run = uuid.uuid4().hex
            if self._journal is not None:
                self._begin(Path(self._journal.name))

    def close(self) -> None:
        """Write no more."""
        with self._lock:
            if self._journal is not None:
                self._journal.close()
                self._journal = None

    def _require(self, run: str) -> None:
        if run != self.run:
            raise StaleError(
                "the lease is of a run before: the data position was restored since, its rows are served again"
            )

    def _look_for_more(self, now: float) -> None:
        after, began = self._leases.expired(now), time.monotonic()
        if not self._data.follows or after.freed or after.next < len(after.rows) or began < self._look_at:
            return
        grown, took_s = self._data.grow(), time.monotonic() - began
        if took_s > _QUICK_S:  # every worker without a split asks each second, and commits wait for this
            self._look_at = time.monotonic() + _PART * took_s
        if grown:
            self._take_listing()
            self._note("listing", base64.b64encode(self._data.listing.packed()).decode())

    def _take_listing(self) -> None:
        """Append the splits that are new in the listing."""
        order = self._data.splits()[len(self._splits) :]
        self._splits += order
        self._leases = self._leases.grown(split.rows for _, _, split in order)

    def _do(self, act: str, *arguments: Any) -> Lease | None:
        """Do it, note it; it holds once it is noted."""
        after, found = self._after(act, *arguments)
        if after is not self._leases:
            self._note(act, *arguments)
            self._leases = after
            if self._journal is not None and self._lines >= _MOST_LINES:
                self._begin(Path(self._journal.name))
        return found

    def _after(self, act: str, *arguments: Any) -> tuple[Leases, Lease | None]:
        if act == "grant":
            worker, now = arguments
            granted, found = self._leases.grant(worker, now, self._length_s)
            return (granted if found else self._leases), found
        if act == "commit":
            split, token, upto, now = arguments
            return self._leases.commit(split, token, upto, now, self._length_s), None
        after = self._leases.give_back(*arguments) if act == "give_back" else self._leases.gone(*arguments)
        return after, None

    def _note(self, *told: Any) -> None:
        if self._journal is None:
            return
        self._require_newest(self._journal)
        if self._torn:
            self._begin(Path(self._journal.name))
        line = memoryview(json.dumps(told).encode() + b"\n")
        self._torn = True  # on a full disk a part of it is written: nothing may follow that
        while line:
            line = line[self._journal.write(line) :]
        os.fdatasync(self._journal.fileno())
        self._torn = False
        self._lines += 1

    def _require_newest(self, journal: IO[bytes]) -> None:
        """Refuse to go on beside a later book, which began the journal again.

        Raises:
            StaleError: there is one.
        """
        ours, there = os.fstat(journal.fileno()), os.stat(journal.name)
        if (ours.st_dev, ours.st_ino) != (there.st_dev, there.st_ino):
            raise StaleError(f"{journal.name}: another book has this journal since: its leases count")

    def _begin(self, journal: Path) -> None:
        """Begin the journal again with what holds now."""
        first = {
            "run": self.run,
            "data": {
                **self._data.state_dict(),
                "listing": base64.b64encode(self._data.listing.packed()).decode(),
            },
            "leases": self._leases.state(),
        }
        durable.make_folder(journal.parent)
        durable.write(journal, json.dumps(first) + "\n", "lease journal")
        before, self._journal = self._journal, journal.open("ab", buffering=0)
        self._lines, self._torn = 0, False
        if before is not None:
            before.close()

    def _replay(self, journal: Path) -> bool:
        """Do again what the journal holds; its last line may have been cut off, and was never answered then."""
        lines = journal.read_bytes().split(b"\n")[:-1]
        if not lines:
            return False
        try:
            first = json.loads(lines[0])
            self._data.load_state_dict(
                {**first["data"], "listing": base64.b64decode(first["data"]["listing"])}
            )
            self._take_listing()
            self.run = first["run"]
            self._leases = Leases.restored(self._leases.rows, first["leases"])
            for line in lines[1:]:
                act, *arguments = json.loads(line)
                if act == "listing":
                    self._data.listing = Listing.unpacked(base64.b64decode(arguments[0]))
                    self._take_listing()
                else:
                    self._leases, _ = self._after(act, *arguments)
        except (ValueError, KeyError, TypeError) as error:
            raise SettingsError(f"{journal}: no journal of leases of this data: {error}") from None
        return True

"""The leases of a data set's splits, kept through the end of the process that keeps them.

Every act is a line of a journal before it is answered, and is done again from there by the next process: a kill
between any two lines loses and doubles nothing.

A book *claims* a journal by a line in it. Acts before that line are the next book's; a book that finds another's claim
before its own act does not answer it. So one that is still there, or asleep, has answered nothing that the next one
does not know of.
"""

from __future__ import annotations

import base64
import errno
import fcntl
import json
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from holdfast import durable
from holdfast.data.agree import Alone
from holdfast.data.dataset import Dataset
from holdfast.data.files import File, Split
from holdfast.data.leases import Lease, Leases
from holdfast.data.listing import Listing
from holdfast.data.sources import Mix, Source
from holdfast.errors import SettingsError, StaleError, UnavailableError

_MOST_LINES = 10_000
"""Of a journal, before it is begun again: all of them are done again at the next start. What it begins with, the
listing above all, is not written again before as much has been noted."""
_CLAIM = b'\n["claimed", '
"""Begins with the end of a line: the one before it may have been cut off."""
_PATIENCE_S, _AGAIN_S = 30.0, 0.02
_PART = 9.0
"""New files are looked for during a tenth of the time: requests for them may come by the thousand each second."""


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
            UnavailableError: another book begins the same journal again, and does not come to an end.

        A book that has the same journal, in this process or another, does nothing more from then on.
        """
        self._data = Dataset(source, 1, seed=seed, agree=Alone(), patience_s=0)
        self._length_s, self._clock = length_s, clock
        self._lock = threading.RLock()
        self._splits: list[tuple[str, File, Split]] = []
        self._leases = Leases.of(())
        self.run = uuid.uuid4().hex
        """Names this book: what a lease of another one asks for is refused."""
        self._journal: IO[bytes] | None = None
        self._torn = False
        """The journal may end in a part of a line or in one of an act that failed, or lack what was listed."""
        self._closed = False
        self._lines = 0
        self._looked = 0
        """Bytes of the journal that this book wrote, or has looked at: no other's claim is in them."""
        self._begun = 0
        """Bytes that it began with."""
        self._look_at = 0.0
        while journal is None or not (journal.exists() and self._replay(journal)):
            self._data.prepare()
            self._take_listing()
            if journal is None or self._begin_first(journal):
                break
            self._data = Dataset(source, 1, seed=seed, agree=Alone(), patience_s=0)
            self._splits, self._leases = [], Leases.of(())

    @contextmanager
    def together(self) -> Iterator[None]:
        """Keep other threads out: what is asked for inside is of one moment."""
        with self._lock:
            yield

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
            return self._leases.used

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
                self._begin_again(self._journal)

    def close(self) -> None:
        """Write no more: a book that has a journal grants and takes nothing from then on."""
        with self._lock:
            if self._journal is not None:
                self._journal.close()
                self._journal, self._closed = None, True

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
        # Every worker without a split asks each second, and commits wait for this.
        self._look_at = time.monotonic() + _PART * took_s
        if grown:
            self._take_listing()
            if self._journal is not None:
                self._torn = True  # if this fails, it is done before the next act is noted
                self._begin_again(self._journal)

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
            if self._journal is not None and self._lines >= _MOST_LINES and self._looked >= 2 * self._begun:
                # The act is noted and counts, also for a book that takes over now: what fails here is not its answer.
                with suppress(StaleError, UnavailableError, OSError):
                    self._begin_again(self._journal)
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

    def _note(self, *entry: Any) -> None:
        """Write an act to the journal.

        Raises:
            StaleError: another book claimed it: the act is not that book's, and never will be.
            UnavailableError: it is closed: what is answered from now on would be lost.
        """
        if self._closed:
            raise UnavailableError("the book of leases is closed: the next one on its journal goes on")
        if self._journal is None:
            return
        if self._require_newest(self._journal) or self._torn:
            self._begin_again(self._journal)
        whole = json.dumps(entry).encode() + b"\n"
        line = memoryview(whole)
        self._torn = True  # on a full disk a part of it is written: nothing may follow that
        while line:
            line = line[self._journal.write(line) :]
        os.fdatasync(self._journal.fileno())
        self._torn = False
        self._lines += 1
        noted, claim, _ = self._unread(self._journal).partition(_CLAIM)
        if whole not in noted or not (claim or _is_there(self._journal)):
            raise _stale(self._journal)  # claimed before this line: the other book knows nothing of it
        self._looked += len(noted)

    def _require_newest(self, journal: IO[bytes]) -> bool:
        """Refuse to go on beside a later book; return whether the journal has something that is not of this one.

        Raises:
            StaleError: there is one: it claimed the journal, or began it again.
        """
        found = self._unread(journal)
        if _CLAIM in found or not _is_there(journal):
            raise _stale(journal)
        self._looked += len(found)
        return bool(found)

    def _unread(self, journal: IO[bytes]) -> bytes:
        """Return what came to the journal since it was looked at."""
        nbytes = os.fstat(journal.fileno()).st_size
        return os.pread(journal.fileno(), max(0, nbytes - self._looked), self._looked)

    def _begin_again(self, before: IO[bytes]) -> None:
        """Begin the journal again, with what holds now, in place of the present one.

        Raises:
            StaleError: another book claimed it, or began it again.
            UnavailableError: another book does so now, and does not come to an end.
        """
        with _alone(before):
            self._require_newest(before)
            self._begin(Path(before.name))
        before.close()

    def _begin_first(self, path: Path) -> bool:
        """Begin a journal that has nothing yet; False: another book that was started with this one was faster."""
        durable.make_folder(path.parent)
        with path.open("a+b", buffering=0) as empty, _alone(empty):
            if not _is_there(empty) or _acts(empty, 0)[0]:
                return False
            self._begin(path)
            return True

    def _begin(self, journal: Path) -> None:
        """Begin a journal with what holds now."""
        first = {
            "run": self.run,
            "length_s": self._length_s,
            "data": {
                **self._data.state_dict(),
                "listing": base64.b64encode(self._data.listing.packed()).decode(),
            },
            "leases": self._leases.state(),
        }
        durable.make_folder(journal.parent)
        durable.write(journal, json.dumps(first) + "\n", "lease journal")
        self._journal = journal.open("a+b", buffering=0)
        self._looked = self._begun = os.fstat(self._journal.fileno()).st_size
        self._lines, self._torn = 0, False

    def _replay(self, path: Path) -> bool:
        """Do again what the journal holds, claim it, and begin it again; False: it is empty.

        Its last line may have been cut off, and was never answered then.
        """
        length_s = self._length_s
        while True:
            with path.open("a+b", buffering=0) as journal:
                lines, nbytes = _acts(journal, 0)
                if not lines:
                    return False
                # Before it is claimed: a journal of other data belongs to another book, which is left alone.
                self._do_again(path, lines, begins=True)
                with _alone(journal):
                    if _is_there(journal):
                        _claim(journal)
                        self._do_again(path, _acts(journal, nbytes)[0])  # what was answered meanwhile
                        self._length_s = length_s
                        self._begin(path)
                        return True
            self._length_s = length_s  # another book began it again meanwhile

    def _do_again(self, path: Path, lines: list[bytes], *, begins: bool = False) -> None:
        """Do acts of a journal: leases last as long as they did then, so that the same grants follow."""
        try:
            if begins:
                first, lines = json.loads(lines[0]), lines[1:]
                self._data.load_state_dict(
                    {**first["data"], "listing": base64.b64decode(first["data"]["listing"])}
                )
                self._splits, self._leases = [], Leases.of(())
                self._take_listing()
                self.run, self._length_s = first["run"], first.get("length_s", self._length_s)
                self._leases = Leases.restored(self._leases.rows, first["leases"])
            for line in lines:
                act, *arguments = json.loads(line)
                if act == "listing":  # of a release before
                    self._data.listing = Listing.unpacked(base64.b64decode(arguments[0]))
                    self._take_listing()
                else:
                    self._leases, _ = self._after(act, *arguments)
        except (ValueError, KeyError, TypeError) as error:
            raise SettingsError(f"{path}: no journal of leases of this data: {error}") from None


def _acts(journal: IO[bytes], first: int) -> tuple[list[bytes], int]:
    """Return the whole lines before any claim, from byte ``first`` on, and the byte after them."""
    journal.seek(first)
    content = journal.read().partition(_CLAIM)[0]
    lines = content.split(b"\n")
    return [line for line in lines[:-1] if line], first + len(content) - len(lines[-1])


@contextmanager
def _alone(journal: IO[bytes]) -> Iterator[None]:
    """Keep other books from beginning the journal again meanwhile, where the file system knows locks.

    Raises:
        UnavailableError: another one does so, and does not come to an end.
    """
    end = time.monotonic() + _PATIENCE_S
    while True:
        try:
            fcntl.flock(journal, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > end:
                raise UnavailableError(
                    f"{journal.name}: another book begins this journal again, for {_PATIENCE_S:g} s by now"
                ) from None
            time.sleep(_AGAIN_S)
            continue
        except OSError:
            pass
        break
    try:
        yield
    finally:
        with suppress(OSError):
            fcntl.flock(journal, fcntl.LOCK_UN)


def _claim(journal: IO[bytes]) -> None:
    """Write a claim, on the disk when this returns."""
    mine = _CLAIM + json.dumps(uuid.uuid4().hex).encode() + b"]\n"
    if journal.write(mine) != len(mine):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), journal.name)
    os.fdatasync(journal.fileno())


def _is_there(journal: IO[bytes]) -> bool:
    """Return whether the file is still the one of its name."""
    ours, there = os.fstat(journal.fileno()), os.stat(journal.name)
    return (ours.st_dev, ours.st_ino) == (there.st_dev, there.st_ino)


def _stale(journal: IO[bytes]) -> StaleError:
    return StaleError(f"{journal.name}: another book has this journal since: its leases count")

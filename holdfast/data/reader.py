"""Reads what a plan asks for: splits, blocks of them, and chunks of lanes, the next of which is read ahead."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from holdfast.data.deal import Pick
from holdfast.data.formats import format_of
from holdfast.data.listing import Catalog
from holdfast.data.patience import PlacePatience
from holdfast.data.plan import Plan, Take
from holdfast.data.rows import Rows, concat, cut, take
from holdfast.data.source_order import Stretch
from holdfast.data.sources import Source
from holdfast.errors import UnavailableError

K = TypeVar("K")
CHUNK = 4096
"""Samples of a lane that are put together at once."""
LOOK_S = 0.5
"""Between looks whether rows that are waited for are with a place that does not answer."""


@dataclass(frozen=True)
class _Chunk:
    """Consecutive samples of a lane."""

    first: int
    last: int
    rows: Rows


class Reader:
    """Reads samples by their places in lanes."""

    def __init__(
        self,
        sources: Sequence[Source],
        threads: int,
        patience: PlacePatience,
        waiting: Callable[[], AbstractContextManager[Any]] = nullcontext,
    ) -> None:
        """Read ``sources``, in their order in the plan, with ``threads`` beside the caller's.

        ``waiting`` is entered while rows are waited for that a place which does not answer has.
        """
        self._patience, self._waiting = patience, waiting
        self._sources = sources
        self._formats = [each.formats() for each in sources]
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="holdfast-data")
        self._threads = threads
        self._held: dict[int, _Chunk] = {}
        self._ahead: dict[tuple[int, int], Future[Rows]] = {}
        self._splits = _Kept[tuple[int, int]]()
        self._blocks = _Kept[tuple[int, int, Any]]()

    def plan(self, plan: Plan, catalogs: Sequence[Catalog], lanes: int) -> None:
        """Read by a plan that begins as the one before, of which ``lanes`` are read here."""
        self._plan, self._catalogs = plan, catalogs
        each = lanes * len(self._sources)
        # The split that a lane stands in is needed again; at the edge of lanes so is their neighbour's.
        self._splits.size, self._blocks.size = 2 * each + self._threads, each + self._threads

    def rows(self, picks: Iterable[Pick]) -> Rows:
        """Return the samples of all picks, in their order."""
        return concat([part for pick in picks for part in self._parts(pick)])

    def close(self) -> None:
        """Read no more."""
        self._patience.end()
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _parts(self, pick: Pick) -> Iterable[Rows]:
        first = pick.first
        while first < pick.last:
            held = self._held.get(pick.lane)
            if held is None or not held.first <= first < held.last:
                held = self._hold(pick.lane, first, pick.last)
            end = min(pick.last, held.last)
            yield cut(held.rows, first - held.first, end - held.first)
            first = end

    def _hold(self, lane: int, first: int, last: int) -> _Chunk:
        """Wait for the chunk that a place is in, and begin to read the next one."""
        start = first - first % CHUNK
        known = self._plan.known(lane, start + CHUNK)
        if known <= first:  # a growing order that does not fill the chunk yet
            return _Chunk(first, last, self._awaited(self._begin(lane, first, last)))
        chunk = self._ahead.pop((lane, start), None) or self._begin(lane, start, known)
        following = self._plan.known(lane, known + CHUNK)
        if known == start + CHUNK and following > known and (lane, known) not in self._ahead:
            self._ahead[lane, known] = self._begin(lane, known, following)
        for old in [each for each in self._ahead if each[0] == lane and each[1] != known]:
            del self._ahead[old]
        before = chunk.done()
        try:
            rows = self._awaited(chunk)
        except UnavailableError:
            if self._patience.seconds and not before:
                raise  # it was asked for all that time until now
            # It was read ahead, perhaps long ago: the place may answer now.
            rows = self._awaited(self._begin(lane, start, known))
        found = self._held[lane] = _Chunk(start, known, rows)
        return found

    def _awaited(self, chunk: Future[Rows]) -> Rows:
        """Return rows when they are read."""
        with ExitStack() as stack:
            reported = False
            while not chunk.done():
                wait((chunk,), LOOK_S)
                if not reported and self._patience.away and not chunk.done():
                    stack.enter_context(self._waiting())
                    reported = True
            return chunk.result()

    def _begin(self, lane: int, first: int, last: int) -> Future[Rows]:
        return self._pool.submit(self._read, Pick(lane, first, last))

    def _read(self, pick: Pick) -> Rows:
        reading = self._plan.reading(pick)
        parts = [cut(self._block(each), each.run.first, each.run.last) for each in reading.takes]
        return take(concat(parts), reading.order)

    def _block(self, taken: Take) -> Rows:
        key = taken.source, taken.epoch, taken.run.block
        rows = self._blocks.get(key, lambda: self._read_block(taken))
        if taken.run.last == len(rows):
            self._blocks.drop(key)
        return rows

    def _read_block(self, taken: Take) -> Rows:
        stretches, order = self._plan.stretches(taken)
        parts = [self._stretch(taken.source, each) for each in stretches]
        return take(concat(parts), order)

    def _stretch(self, source: int, stretch: Stretch) -> Rows:
        """Read rows of a split, and keep it where the lane's next block, or another lane, needs the rest."""
        key = source, stretch.split
        if stretch.last - stretch.first == self._catalogs[source].splits[stretch.split][1].rows:
            return self._read_split(*key)
        rows = self._splits.get(key, lambda: self._read_split(*key))
        return cut(rows, stretch.first, stretch.last)

    def _read_split(self, source: int, number: int) -> Rows:
        file, split = self._catalogs[source].splits[number]
        of = self._sources[source]
        path = f"{of.place.name.rstrip('/')}/{file.path}"

        def read() -> Rows:
            with of.place.open(file) as opened:
                return self._formats[source][format_of(path, of.format)].read(opened, path, split)

        return of.decoded(self._patience.ask(read), path, split)


class _Kept(Generic[K]):
    """The last values that were made; a caller that asks while one is being made waits for it."""

    def __init__(self) -> None:
        self.size = 1
        self._values: OrderedDict[K, Future[Any]] = OrderedDict()
        self._lock = threading.Lock()

    def drop(self, key: K) -> None:
        with self._lock:
            self._values.pop(key, None)

    def get(self, key: K, make: Callable[[], Any]) -> Any:
        with self._lock:
            found = self._values.get(key)
            mine = found is None
            if found is None:
                found = self._values[key] = Future()
                while len(self._values) > self.size:
                    self._values.popitem(last=False)
            else:
                self._values.move_to_end(key)
        if mine:
            try:
                found.set_result(make())
            except BaseException as error:
                with self._lock:
                    self._values.pop(key, None)
                found.set_exception(error)
        return found.result()

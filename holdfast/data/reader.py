"""Reads what a plan asks for: splits, blocks of them, and chunks of lanes, the next of which is read ahead."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Generic, TypeVar

from holdfast.data.deal import Pick
from holdfast.data.formats import format_of
from holdfast.data.listing import Catalog
from holdfast.data.plan import Plan, Take
from holdfast.data.rows import Rows, concat, cut, take
from holdfast.data.sources import Source

K = TypeVar("K")
CHUNK = 4096
"""Samples of a lane that are put together at once."""


class Reader:
    """Reads samples by their places in lanes."""

    def __init__(self, sources: Sequence[Source], threads: int) -> None:
        """Read ``sources``, in their order in the plan, with ``threads`` beside the caller's."""
        self._sources = sources
        self._formats = [each.formats() for each in sources]
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="holdfast-data")
        self._threads = threads
        self._chunks: OrderedDict[tuple[int, int], Future[Rows]] = OrderedDict()
        self._splits = _Kept[tuple[int, int]]()
        self._blocks = _Kept[tuple[int, int, Any]]()

    def plan(self, plan: Plan, catalogs: Sequence[Catalog], lanes: int) -> None:
        """Read by a plan that begins as the one before, of which ``lanes`` are read here."""
        self._plan, self._catalogs = plan, catalogs
        each = lanes * len(self._sources)
        # The split that a lane stands in is needed again; at the edge of lanes so is their neighbour's.
        self._splits.size, self._blocks.size = 2 * each + self._threads, 2 * each

    def rows(self, picks: Iterable[Pick]) -> Rows:
        """Return the samples of all picks, in their order."""
        return concat([part for pick in picks for part in self._parts(pick)])

    def close(self) -> None:
        """Read no more."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _parts(self, pick: Pick) -> Iterable[Rows]:
        first = pick.first
        while first < pick.last:
            number = first // CHUNK
            end = min(pick.last, (number + 1) * CHUNK)
            start = number * CHUNK
            known = self._plan.known(pick.lane, start + CHUNK)
            if known >= end:
                rows = self._done(pick.lane, number, self._chunk(pick.lane, number, known))
                if known == start + CHUNK and (more := self._plan.known(pick.lane, known + CHUNK)) > known:
                    self._chunk(pick.lane, number + 1, more)
                yield cut(rows, first - start, end - start)
            else:
                yield self._read(Pick(pick.lane, first, end))
            first = end

    def _chunk(self, lane: int, number: int, known: int) -> Future[Rows]:
        """Begin to read a chunk, if it is not there."""
        key = lane, number
        found = self._chunks.get(key)
        if found is None:
            for old in [each for each in self._chunks if each[0] == lane and each[1] < number - 1]:
                del self._chunks[old]
            found = self._pool.submit(self._read, Pick(lane, number * CHUNK, known))
            self._chunks[key] = found
        return found

    def _done(self, lane: int, number: int, chunk: Future[Rows]) -> Rows:
        try:
            return chunk.result()
        except BaseException:
            self._chunks.pop((lane, number), None)  # the next call tries again
            raise

    def _read(self, pick: Pick) -> Rows:
        reading = self._plan.reading(pick)
        parts = [cut(self._block(each), each.run.first, each.run.last) for each in reading.takes]
        return take(concat(parts), reading.order)

    def _block(self, taken: Take) -> Rows:
        key = taken.source, taken.epoch, taken.run.block
        return self._blocks.get(key, lambda: self._read_block(taken))

    def _read_block(self, taken: Take) -> Rows:
        stretches, order = self._plan.stretches(taken)
        parts = [cut(self._split(taken.source, each.split), each.first, each.last) for each in stretches]
        return take(concat(parts), order)

    def _split(self, source: int, split: int) -> Rows:
        return self._splits.get((source, split), lambda: self._read_split(source, split))

    def _read_split(self, source: int, number: int) -> Rows:
        file, split = self._catalogs[source].splits[number]
        of = self._sources[source]
        path = f"{of.place.name.rstrip('/')}/{file.path}"
        with of.place.open(file) as opened:
            rows = self._formats[source][format_of(path, of.format)].read(opened, path, split)
        return of.decoded(rows, path)


class _Kept(Generic[K]):
    """The last values that were made; whoever asks while one is being made waits for it."""

    def __init__(self) -> None:
        self.size = 1
        self._values: OrderedDict[K, Future[Any]] = OrderedDict()
        self._lock = threading.Lock()

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

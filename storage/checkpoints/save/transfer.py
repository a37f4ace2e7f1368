"""The copy of one save: tensor bytes from where training keeps them into their places in a shard file.

In host memory a thread copies small tensors first, then the others in the order of the file, so that it can take the
digest of each stretch while it is still in the cache. A thread that has to wait for the copy does not wait for a
processor to become free for the other: it copies what that has not begun, and helps from the other end.

From CUDA devices the copy runs on a stream of its own into pinned pages
(:mod:`~holdfast.storage.checkpoints.save.device_lane`; ByteRobust section 7: copies on their own stream during the next
forward and backward; the optimizer step waits only for the own rank's copy).
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter

import torch
from torch import Tensor

from holdfast.errors import CheckpointError
from holdfast.storage.checkpoints.save.device_lane import DeviceLane, Pairs

STRETCH_BYTES = 4 << 20
"""Taken by one thread at a time."""
CACHED_BYTES = 256 << 10
"""Copied at one go before its digest is taken: fits a core's own cache, and is long against what a call costs."""
SMALL_BYTES = 64 << 10
"""Tensors up to this size are copied together in one call."""
ROOM_BYTES = 32 << 20
"""Of a GPU's memory that a copy may take for a moment, where the elements of a tensor lie in another order there."""
MOST_HELPERS = 4

_memmove = ctypes.CDLL(None).memmove  # called without the GIL
_version = attrgetter("_version")
_memmove.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]


@dataclass(frozen=True)
class TensorMove:
    """One tensor and its place."""

    source: Tensor
    target: Tensor
    """A contiguous view of the shard file."""
    offset: int
    """Of the target in the file."""


@dataclass(frozen=True)
class _Stretch:
    target: int
    source: int
    nbytes: int
    end: int
    """Offset in the file behind its last byte."""


class Route:
    """A list of moves, and how each is made. Good for as long as all sources lie where they are."""

    def __init__(self, moves: Sequence[TensorMove]) -> None:
        self.sources = [move.source for move in moves]
        self.on_device = by_device(moves)
        host = [move for move in moves if not move.source.is_cuda]
        big = [move for move in host if _is_plain(move) and move.target.nbytes > SMALL_BYTES]
        taken = set(map(id, big))
        small = [move for move in host if id(move) not in taken]
        self.together = [move.source for move in small], [move.target for move in small]
        self.stretches = [each for move in sorted(big, key=lambda move: move.offset) for each in _cut(move)]


class Transfer:
    """Makes all moves of a route once. The sources must not change until :meth:`wait` has returned."""

    def __init__(self, route: Route, device: DeviceLane | None = None) -> None:
        self._sources = route.sources
        self._versions = list(map(_version, route.sources))
        self._changed: list[int] | None = None
        self._together, self._targets = route.together
        self._stretches = route.stretches
        self._first, self._last = 0, len(self._stretches)
        self._left = len(self._stretches) + 1
        self._lock = threading.Lock()
        self._begun_together = False
        self._copied_together = threading.Event()
        self._error: BaseException | None = None
        """Of small tensors, from whichever thread copied them: :meth:`run` raises it."""
        self._copied = threading.Event()
        self._device = device.start(route.on_device) if device is not None and route.on_device else None

    def run(self, reached: Callable[[int], None]) -> None:
        """Copy everything; ``reached(end)`` is called as the file gets complete from its beginning up to ``end``."""
        self._copy_together()
        self._copied_together.wait()
        if self._error is not None:
            raise CheckpointError(f"the copy failed: {self._error!r}") from self._error
        digested = reached if self._device is None else None
        while (stretch := self._take(first=True)) is not None:
            _copy(stretch, digested)
            self._finished()
        self._copied.wait()
        if self._device is not None:
            self._device.synchronize()
            self._look_for_changes()

    def wait(self) -> None:
        """Return when the sources may change; copies what is left together with :meth:`run`."""
        if self._device is not None:
            self._look_for_changes()
            self._device.before_update()
        if self._copied.is_set():
            return
        for _ in range(min(MOST_HELPERS, torch.get_num_threads()) - 2):
            threading.Thread(target=self._help, daemon=True).start()
        self._help()
        self._copied.wait()

    def finish(self) -> None:
        """Do as :meth:`wait` does; return when the devices, too, have copied."""
        self.wait()
        if self._device is not None:
            self._device.synchronize()

    def abandon(self) -> None:
        """Give the copy up: it will not be finished, and no thread waits for it any more."""
        self._copied.set()

    @property
    def changed(self) -> list[int]:
        """Numbers of the moves whose source was changed in place during the copy: their bytes may be mixed."""
        return self._changed or []

    def _help(self) -> None:
        self._copy_together()
        while (stretch := self._take(first=False)) is not None:
            _memmove(stretch.target, stretch.source, stretch.nbytes)
            self._finished()

    def _copy_together(self) -> None:
        """Copy the small tensors, unless another thread does."""
        with self._lock:
            begun, self._begun_together = self._begun_together, True
        if begun:
            return
        try:
            copy_all(self._targets, self._together)
        except BaseException as error:
            self._error = error
            self._copied.set()
            if not isinstance(error, Exception):  # a signal's, in the thread that trains
                raise
        else:
            self._finished()
        finally:
            self._copied_together.set()

    def _take(self, *, first: bool) -> _Stretch | None:
        with self._lock:
            if self._first >= self._last:
                return None
            if first:
                self._first += 1
                return self._stretches[self._first - 1]
            self._last -= 1
            return self._stretches[self._last]

    def _finished(self) -> None:
        with self._lock:
            self._left -= 1
            if self._left > 0:
                return
            if self._device is None:
                # Before a waiting thread goes on to change them.
                self._look_for_changes()
            self._copied.set()

    def _look_for_changes(self) -> None:
        if self._changed is None:
            self._changed = [
                number
                for number, (now, version) in enumerate(
                    zip(map(_version, self._sources), self._versions, strict=True)
                )
                if now != version
            ]


def _copy(stretch: _Stretch, reached: Callable[[int], None] | None) -> None:
    begin = stretch.end - stretch.nbytes
    for at in range(0, stretch.nbytes, CACHED_BYTES):
        size = min(CACHED_BYTES, stretch.nbytes - at)
        _memmove(stretch.target + at, stretch.source + at, size)
        if reached is not None:
            reached(begin + at + size)


@torch.no_grad()
def copy_all(targets: list[Tensor], sources: list[Tensor]) -> None:
    """Copy at once. Of copies from a GPU only the end of all is waited for, where their targets are pinned."""
    if any(source.is_cuda for source in sources):
        pairs = [*zip(targets, sources, strict=True)]
        found = by_device([TensorMove(source, target, 0) for target, source in pairs])
        for some in found.values():
            torch._foreach_copy_(*some, non_blocking=True)
        copy_all(*_lists((target, source) for target, source in pairs if not source.is_cuda))
        for device in found:
            torch.cuda.current_stream(device).synchronize()
    elif len(targets) == 1:
        targets[0].copy_(sources[0])
    elif targets:
        torch._foreach_copy_(targets, sources)


def by_device(moves: Sequence[TensorMove]) -> dict[torch.device, Pairs]:
    """Return what is copied from each CUDA device."""
    found: dict[torch.device, Pairs] = {}
    for part in (part for move in moves if move.source.is_cuda for part in in_parts(move)):
        targets, sources = found.setdefault(part.source.device, ([], []))
        targets.append(part.target)
        sources.append(part.source)
    return found


def _lists(pairs: Iterable[tuple[Tensor, Tensor]]) -> Pairs:
    kept = [*pairs]
    return [target for target, _ in kept], [source for _, source in kept]


def in_parts(move: TensorMove) -> list[TensorMove]:
    """Return what to copy one after the other, so that no copy takes more than :data:`ROOM_BYTES` for a moment.

    Torch puts the elements in order on the GPU, which takes as much room as the copy: a GPU that is full has none.
    """
    source, target = move.source, move.target
    if target.nbytes <= ROOM_BYTES or _in_order(source):
        return [move]
    along = next(number for number, size in enumerate(source.shape) if size > 1)
    rows = max(1, ROOM_BYTES * source.shape[along] // target.nbytes)
    pairs = zip(torch.split(source, rows, along), torch.split(target, rows, along), strict=True)
    return [part for pair in pairs for part in in_parts(TensorMove(*pair, move.offset))]


def _is_plain(move: TensorMove) -> bool:
    """Return whether the bytes in memory are what the tensor holds."""
    return move.source.device.type == "cpu" and _in_order(move.source)


def _in_order(source: Tensor) -> bool:
    return source.is_contiguous() and not (source.is_conj() or source.is_neg())


def _cut(move: TensorMove) -> list[_Stretch]:
    nbytes, to, source = move.target.nbytes, move.target.data_ptr(), move.source.data_ptr()
    return [
        _Stretch(to + at, source + at, size := min(STRETCH_BYTES, nbytes - at), move.offset + at + size)
        for at in range(0, nbytes, STRETCH_BYTES)
    ]

"""The lock of the process that writes a shard file; it lasts as long as one of the file's mappings.

An agent starts no epoch before the ranks of the one before it are seen to be gone. If a rank is left all the same
(stopped, or in a system call that does not end), its files are still mapped there, and it would write on in them once
it resumes. Its successor finds the lock taken and leaves it the old bytes: ``slot_files.create_locked`` puts a
new file in their place, ``slot_files.take_over`` a copy.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from weakref import WeakValueDictionary

from holdfast.descriptors import Opened
from holdfast.storage.checkpoints.save.buffers import EPOCH_AT

_EPOCH = struct.Struct("<Q")


class LockedMap(mmap.mmap):
    """A mapping that has a part in the lock of its file."""

    lock: Lock
    pinned: Callable[[], object] | None = None
    """Ends the registration of its pages with CUDA; None: they have none."""

    def unpin(self) -> None:
        """End the registration of its pages, which must not outlive the mapping.

        CUDA would keep the old pages, and take them for those of the next mapping at the same address.
        """
        if (end := self.pinned) is not None:
            self.pinned = None
            end()

    def close(self) -> None:
        """Unmap the file."""
        self.unpin()
        super().close()

    def __del__(self) -> None:
        self.unpin()
        lock: Lock | None = getattr(self, "lock", None)  # none where it could not be mapped
        if lock is not None and not lock.is_open():
            _left.append(self)


_left: list[LockedMap] = []
"""Kept until the process ends: it would close the number of a descriptor that it has no more."""


class Lock:
    """That of one file, in this process; given back when nothing has a part in it any more."""

    def __init__(self, descriptor: int) -> None:
        """Of the file that ``descriptor``, which is locked, has open."""
        self._opened = Opened.at(os.dup(descriptor))

    def is_open(self) -> bool:
        """Return whether its descriptor was left open; without, it lasts as long as the first mapping."""
        return self._opened.is_open()

    def is_shared(self, path: Path) -> bool:
        """Return whether its file has another name than ``path`` (it is lent), or not that one any more."""
        try:
            found = path.stat()
        except FileNotFoundError:
            return True
        here = (found.st_dev, found.st_ino) == (self._opened.device, self._opened.inode)
        return not here or found.st_nlink != 1

    def __del__(self) -> None:
        if self.is_open():
            os.close(self._opened.descriptor)


_locks: WeakValueDictionary[tuple[int, int], Lock] = WeakValueDictionary()
os.register_at_fork(after_in_child=_locks.clear)  # they are the parent's


def lock(descriptor: int) -> Lock | None:
    """Return the lock of the open file ``descriptor``, shared in this process; None: another process has it."""
    found = os.fstat(descriptor)
    known = _locks.get((found.st_dev, found.st_ino))
    if known is not None:
        return known
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return None
    except OSError:  # a file system that has no locks
        pass
    made = _locks[found.st_dev, found.st_ino] = Lock(descriptor)
    return made


def write_epoch(descriptor: int, epoch: int) -> None:
    """Note which epoch owns the file from now on."""
    os.pwrite(descriptor, _EPOCH.pack(epoch), EPOCH_AT)


def read_epoch(descriptor: int) -> int:
    """Return the epoch that was noted; 0: none."""
    with suppress(struct.error):
        return int(_EPOCH.unpack(os.pread(descriptor, _EPOCH.size, EPOCH_AT))[0])
    return 0

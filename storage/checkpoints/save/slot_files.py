"""The files of slots: made, lent, replaced and taken over.

What is in them: :mod:`~holdfast.storage.checkpoints.save.buffers`.
"""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from holdfast import private
from holdfast.errors import CheckpointError, SettingsError
from holdfast.storage.checkpoints.save import buffers, slot_lock
from holdfast.storage.checkpoints.save.odd_files import make_way

_MORE_MEMORY = " Give the machine more shared memory, or run fewer ranks on it."
_ADVICE = {
    errno.ENOSPC: _MORE_MEMORY,
    errno.ENOMEM: _MORE_MEMORY,
    errno.EDQUOT: _MORE_MEMORY,
    errno.EFBIG: " It is more than the limit of file sizes that the agent was started under (`ulimit -f`): raise that.",
}


def create(path: Path, file_nbytes: int) -> mmap.mmap:
    """Map the shard file at ``path`` for an agent that receives a shard; created unless one of that size is there.

    A file of another size, or one that is lent (:func:`lend`), is replaced, never changed: a process that still has it
    mapped, or has another name for it, keeps the old bytes.

    Raises:
        CheckpointError: shared memory is full, or the folder cannot be written.
    """
    with _explained(path, file_nbytes):
        if _is_unfit(path, file_nbytes):
            _renew(path, file_nbytes)
        descriptor = private.opened(path, os.O_RDWR)
        try:
            return mmap.mmap(descriptor, file_nbytes)
        finally:
            os.close(descriptor)


def create_locked(path: Path, file_nbytes: int, epoch: int) -> slot_lock.LockedMap:
    """Map as :func:`create` does, for a rank of ``epoch``: a file that an older one still has mapped is replaced, too.

    Raises:
        CheckpointError: as there; or a rank of a newer epoch has the file: this process is left from an older one.
    """
    with _explained(path, file_nbytes):
        while (made := _map_locked(path, file_nbytes, epoch)) is None:
            _renew(path, file_nbytes)
        return made


@contextmanager
def _explained(path: Path, file_nbytes: int) -> Iterator[None]:
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        make_way(path)
        yield
    except OSError as error:
        advice = _ADVICE.get(error.errno or 0, "")
        raise CheckpointError(
            f"shard file {path}: cannot have {file_nbytes} bytes ({error.strerror}).{advice}"
        ) from error
    except SettingsError as error:
        raise CheckpointError(f"shard file {error}") from error


def take_over(folder: Path, rank: int, epoch: int) -> list[Path]:
    """Put copies in place of the slots of ``rank`` that a process of an older epoch still has mapped for writing.

    What that process writes from then on is lost with it. A copy that is torn is marked empty.

    Returns:
        The slots that were replaced.

    Raises:
        CheckpointError: shared memory is full, or a rank of a newer epoch has one: this process is left from an older.
    """
    taken = []
    for path in (buffers.shard_path(folder, rank, slot) for slot in buffers.SLOTS):
        try:
            make_way(path)
            descriptor = private.opened(path, os.O_RDWR)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise CheckpointError(f"shard file {path}: cannot be opened ({error.strerror})") from error
        try:
            if slot_lock.lock(descriptor) is None:
                _require_older(path, descriptor, epoch)
                _copy(path, descriptor)
                taken.append(path)
        except OSError as error:
            raise CheckpointError(f"shard file {path}: no room for a copy ({error.strerror})") from error
        finally:
            os.close(descriptor)
    return taken


def _copy(path: Path, descriptor: int) -> None:
    """Put a copy of the open file in place of ``path``, once it is complete."""
    aside = path.with_suffix(".taken")
    with (
        mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ) as old,
        memoryview(old) as view,
        create(aside, len(view)) as new,
    ):
        new[:] = view
    try:
        buffers.verify(aside)
    except CheckpointError:
        buffers.discard(aside)
    aside.rename(path)


def _is_unfit(path: Path, file_nbytes: int) -> bool:
    return not path.exists() or path.stat().st_size != file_nbytes or is_lent(path)


def _map_locked(path: Path, file_nbytes: int, epoch: int) -> slot_lock.LockedMap | None:
    """Return the file with its lock; None: it must make way for another one.

    Raises:
        CheckpointError: a newer epoch has the lock.
    """
    try:
        descriptor = private.opened(path, os.O_RDWR)
    except FileNotFoundError:
        return None
    try:
        held = slot_lock.lock(descriptor)
        if held is None:
            _require_older(path, descriptor, epoch)
        if not _is_at(path, descriptor):  # another process has just replaced it
            return _map_locked(path, file_nbytes, epoch)
        if held is None or _is_unfit(path, file_nbytes):
            return None
        slot_lock.write_epoch(descriptor, epoch)
        made = slot_lock.LockedMap(descriptor, file_nbytes)
        made.lock = held
        return made
    finally:
        os.close(descriptor)


def _is_at(path: Path, descriptor: int) -> bool:
    """Return whether the open file is still the one at ``path``."""
    here, there = os.fstat(descriptor), path.stat()
    return (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino)


def _require_older(path: Path, descriptor: int, epoch: int) -> None:
    found = slot_lock.read_epoch(descriptor)
    if found > epoch:
        raise CheckpointError(
            f"shard file {path}: epoch {found} of the job writes it by now; this process is left from epoch {epoch} "
            "and must not save"
        )


def lend(path: Path, step: int, name: Path) -> buffers.ShardHeader:
    """Give the shard of ``step`` at ``path`` a second ``name``, under which its bytes stay as they are.

    For transfers that take longer than a step, without a copy: the next save into the slot finds the file
    lent and takes a new one in its place. A save that began in the same moment may still hit the old one, so
    after the transfer the header under ``name`` must be read again: only if it is the same is the file unchanged.

    Raises:
        CheckpointError: the slot does not hold a complete shard of ``step`` (any more), or memory is full.
    """
    try:
        name.parent.mkdir(parents=True, exist_ok=True)
        name.unlink(missing_ok=True)
        os.link(path, name)
    except OSError as error:
        raise CheckpointError(
            f"shard {path} cannot be pinned as {name} ({error.strerror}): step {step} stays in memory only"
        ) from error
    header = buffers.read_header(name)
    if header is None or header.step != step:
        name.unlink(missing_ok=True)
        raise CheckpointError(f"shard {path} no longer holds step {step}")
    return header


def is_lent(path: Path) -> bool:
    """Return whether the file at ``path`` has another name: its bytes must not be changed."""
    try:
        return path.stat().st_nlink > 1
    except FileNotFoundError:
        return False


def is_reserved(path: Path) -> bool:
    """Return whether a successor for the file at ``path`` is ready (:func:`reserve`)."""
    return path.with_suffix(".reserved").exists()


def reserve(path: Path, file_nbytes: int) -> None:
    """Have a successor ready for the lent file at ``path``, so that the next save need not wait for its pages.

    Raises:
        CheckpointError: shared memory is full.
    """
    try:
        _allocate(path.with_suffix(".reserved"), file_nbytes)
    except OSError as error:
        raise CheckpointError(
            f"no {file_nbytes} bytes for a successor of {path}: {error.strerror}"
        ) from error


def release(path: Path, name: Path) -> None:
    """End a loan, and drop a successor that was not used, unless the file is lent to another one still."""
    name.unlink(missing_ok=True)
    if not is_lent(path):
        path.with_suffix(".reserved").unlink(missing_ok=True)


def _renew(path: Path, file_nbytes: int) -> None:
    """Put an empty file in place of ``path``: the one that was reserved for it, if there is one."""
    reserved = path.with_suffix(".reserved")
    try:
        if reserved.stat().st_size == file_nbytes:
            reserved.rename(path)
            return
    except FileNotFoundError:
        pass
    _allocate(path, file_nbytes)


def _allocate(path: Path, file_nbytes: int) -> None:
    """Put an empty file with all its pages reserved in place of ``path`` (a hole would be a SIGBUS later)."""
    fresh = path.with_suffix(path.suffix + ".new")
    descriptor = private.opened(fresh, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    try:
        os.posix_fallocate(descriptor, 0, file_nbytes)
        os.pwrite(descriptor, buffers.EMPTY_SLOT, 0)
        fresh.rename(path)
    except OSError:
        fresh.unlink(missing_ok=True)
        raise
    finally:
        os.close(descriptor)

"""Bandwidth of the disk that holds the machine's folder: bytes written through to it, and read back from it.

It runs in a process of its own (:mod:`holdfast.agent.diagnostics.check_process`): one that is stuck in the kernel holds
up nothing else. The file has no name, so that nothing of a killed check stays behind. Caches are bypassed
(``O_DIRECT``). A file system without a block device of its own (a network's, an overlay, memory) is not tested: what
others do to it is not known.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import time
from dataclasses import dataclass, replace
from pathlib import Path

from holdfast.agent.diagnostics.check_part import PATIENCE_S, CheckOutcome, CheckPart

FIRST_BYTES = 4 << 20
"""Written first; where this alone takes :data:`PATIENCE_S` it is the measurement."""
MOST_BYTES = 64 << 20
ROUND_S = 0.25
"""Of about this length are the rounds: fast disks get more bytes."""
ROUNDS = 3
SPARE = 4
"""So many times :data:`MOST_BYTES` must be free."""
_NO_SUCH_FILES = frozenset({errno.EOPNOTSUPP, errno.EISDIR, errno.ENOENT})
"""The file system, or its kernel, cannot make them."""
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})
"""Others took it meanwhile, or a quota holds: a disk that is full is another check's."""
_CHUNK = 4 << 20
_SECTOR = 512
_BLOCKS = Path("/sys/dev/block")


def disk(part: CheckPart) -> CheckOutcome:
    """Write and read a file in the machine's folder."""
    return measure(Path(part.disk or part.folder))


def measure(folder: Path, blocks: Path = _BLOCKS) -> CheckOutcome:
    """Return MB/s written through to the disk below ``folder`` and read back, of the best round.

    Raises:
        OSError: the disk fails to write or to read.
    """
    if why := _untestable(folder, blocks):
        return CheckOutcome(untested=why)
    device = _Device(folder, blocks)
    try:
        file = _open(folder)
    except OSError as error:
        if error.errno not in _NO_SUCH_FILES:
            raise
        return CheckOutcome(untested=f"{folder} has no files without a name ({error.strerror})")
    try:
        with mmap.mmap(-1, _CHUNK) as pages:
            pages[:] = os.urandom(1 << 16) * (_CHUNK >> 16)
            first = _round(file, pages, FIRST_BYTES)
            if first.seconds > PATIENCE_S:
                return _outcome([first], device)
            most = min(MOST_BYTES, int(FIRST_BYTES * ROUND_S / first.seconds))
            nbytes = max(FIRST_BYTES, most // _CHUNK * _CHUNK)
            device = _Device(folder, blocks)
            return _outcome([_round(file, pages, nbytes) for _ in range(ROUNDS)], device)
    except OSError as error:
        if error.errno not in _NO_ROOM:
            raise
        return CheckOutcome(untested=f"no room is left in {folder} ({error.strerror})")
    finally:
        os.close(file)


@dataclass(frozen=True)
class _Round:
    nbytes: int
    seconds: float
    wrong: int
    """Bytes that came back different."""


class _Device:
    """The use of a block device from now on."""

    def __init__(self, folder: Path, blocks: Path) -> None:
        self._folder = (blocks / _number(folder)).resolve()
        self._before = self._moved()

    @property
    def model(self) -> str:
        """The name of its model: only equal ones are compared."""
        for folder in (self._folder, self._folder.parent):
            with contextlib.suppress(OSError):
                return (folder / "device/model").read_text(errors="replace").strip()[:60]
        return "a disk without a model"

    def of_others(self, own_bytes: int) -> float:
        """Return the share of the bytes moved since that others moved."""
        moved = self._moved() - self._before
        return max(0.0, 1 - own_bytes / moved) if moved > 0 else 0.0

    def _moved(self) -> int:
        fields = (self._folder / "stat").read_text().split()
        return _SECTOR * (int(fields[2]) + int(fields[6]))


def _outcome(rounds: list[_Round], device: _Device) -> CheckOutcome:
    own = sum(2 * each.nbytes for each in rounds)
    wrong = sum(each.wrong for each in rounds)
    found = CheckOutcome(
        value=max(2 * each.nbytes / each.seconds for each in rounds) / 1e6,
        unit="MB/s",
        repeats=len(rounds),
        busy=device.of_others(own),
        kind=device.model,
    )
    return replace(found, wrong=f"{wrong} bytes came back damaged") if wrong else found


def _round(file: int, pages: mmap.mmap, nbytes: int) -> _Round:
    started = time.perf_counter()
    for offset in range(0, nbytes, _CHUNK):
        if os.pwritev(file, [pages], offset) != _CHUNK:
            raise OSError(f"fewer than {_CHUNK} bytes were written")
    os.fdatasync(file)
    spent, wrong = time.perf_counter() - started, 0
    with mmap.mmap(-1, _CHUNK) as back:
        for offset in range(0, nbytes, _CHUNK):
            started = time.perf_counter()
            os.posix_fadvise(file, offset, _CHUNK, os.POSIX_FADV_DONTNEED)
            read = os.preadv(file, [back], offset)
            spent += time.perf_counter() - started
            if read != _CHUNK or back[:] != pages[:]:
                wrong += _differing(back[:], pages[:])
    return _Round(nbytes, max(spent, 1e-9), wrong)


def _differing(one: bytes, other: bytes) -> int:
    odd = (int.from_bytes(one) ^ int.from_bytes(other)).to_bytes(len(one))
    return len(odd) - odd.count(0)


def _open(folder: Path) -> int:
    flags = os.O_RDWR | os.O_TMPFILE
    try:
        return os.open(folder, flags | os.O_DIRECT, 0o600)
    except OSError:
        return os.open(folder, flags, 0o600)


def _untestable(folder: Path, blocks: Path) -> str:
    if not (blocks / _number(folder) / "stat").is_file():
        return f"{folder} is on no block device of this machine"
    free = os.statvfs(folder)
    if free.f_bavail * free.f_frsize < SPARE * MOST_BYTES:
        return f"less than {SPARE * MOST_BYTES >> 20} MiB are free in {folder}"
    return ""


def _number(folder: Path) -> str:
    device = folder.stat().st_dev
    return f"{os.major(device)}:{os.minor(device)}"

"""Follows a growing text file: whole lines only, through truncation and rotation, from now on."""

from __future__ import annotations

import os
from pathlib import Path

_READ_BYTES = 1 << 20
_MAX_LINE_BYTES = 16 << 10


class Follower:
    """New lines of ``path`` since this follower was made; of a file that appears later, or ``from_start``, all.

    One poll reads at most 1 MiB, so a storm of lines takes bounded time and memory; the rest waits for the
    next poll. A line longer than 16 KiB is cut. A carriage return ends a line as well: a progress bar that is drawn
    for hours on one line would hide what is written behind it.
    """

    def __init__(self, path: Path, *, from_start: bool = False) -> None:
        self._path = path
        self._file: int | None = None
        self._identity: tuple[int, int] | None = None
        self._offset = 0
        self._partial = b""
        self._open(at_end=not from_start)

    def lines(self) -> list[str]:
        """Return lines that were completed since the last call. An unreadable or missing file has none."""
        try:
            found = os.stat(self._path)
        except OSError:
            # Rotated away, and the next file is not there yet; what was written before still counts.
            return self._read()
        if self._file is not None and (found.st_dev, found.st_ino) == self._identity:
            if found.st_size < self._offset:
                self._offset, self._partial = 0, b""
            return self._read() if found.st_size > self._offset else []
        rest = self._read()
        self._open(at_end=False)
        return rest + self._read()

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            os.close(self._file)
        self._file = None

    def _open(self, *, at_end: bool) -> None:
        self.close()
        self._partial, self._offset, self._identity = b"", 0, None
        try:
            self._file = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return
        found = os.fstat(self._file)
        self._identity = (found.st_dev, found.st_ino)
        self._offset = found.st_size if at_end else 0

    def _read(self) -> list[str]:
        if self._file is None:
            return []
        try:
            data = os.pread(self._file, _READ_BYTES, self._offset)
        except OSError:
            return []
        self._offset += len(data)
        if b"\r" in data:
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *whole, self._partial = (self._partial + data).split(b"\n")
        self._partial = self._partial[:_MAX_LINE_BYTES]
        return [line[:_MAX_LINE_BYTES].decode(errors="replace") for line in whole]

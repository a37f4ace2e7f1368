"""A file that is read by ranges of bytes from afar."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import BinaryIO, cast

BUFFER_NBYTES = 1 << 20
"""Small reads are made from so much at once."""


class RangeFile(io.RawIOBase):
    """Bytes that a function brings; seekable, and read once per call of any size."""

    def __init__(
        self, nbytes: int, bring: Callable[[int, int], bytes], ended: Callable[[], None] | None = None
    ) -> None:
        """Read ``nbytes`` through ``bring(start, stop)``, which returns all of that range or raises.

        ``ended`` is called when it is closed.
        """
        self._nbytes, self._bring, self._ended, self._at = nbytes, bring, ended, 0

    def readable(self) -> bool:
        """It is."""
        return True

    def seekable(self) -> bool:
        """It is."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._nbytes}[whence]
        self._at = max(0, base + offset)
        return self._at

    def tell(self) -> int:
        """Return the position."""
        return self._at

    def close(self) -> None:
        """Read no more."""
        ended, self._ended = self._ended, None
        super().close()
        if ended is not None:
            ended()

    def readinto(self, buffer: object) -> int:
        """Bring one range."""
        view = memoryview(buffer).cast("B")  # type: ignore[arg-type]
        stop = min(self._nbytes, self._at + len(view))
        if stop <= self._at:
            return 0
        content = self._bring(self._at, stop)
        view[: len(content)] = content
        self._at += len(content)
        return len(content)


def opened(
    nbytes: int, bring: Callable[[int, int], bytes], ended: Callable[[], None] | None = None
) -> BinaryIO:
    """Return such a file, with a buffer for small reads."""
    return cast(BinaryIO, io.BufferedReader(RangeFile(nbytes, bring, ended), BUFFER_NBYTES))

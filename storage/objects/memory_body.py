"""Bytes in memory as the body of a request, without a copy of them."""

from __future__ import annotations

import os

SEND_BYTES = 256 * 1024
"""Sent in one piece, within the time that a connection may take to be made."""


class Window:
    """A part of a mapped file, read as a file is; what it hands out are views of the memory itself.

    An HTTP client asks for pieces of 16 KiB and sends all that it gets: so it is given more at a time.
    """

    def __init__(self, view: memoryview) -> None:
        self._view = view
        self._at = 0

    def __len__(self) -> int:
        return len(self._view)

    def read(self, size: int | None = -1) -> memoryview:
        """Return the next bytes: all of them without a ``size``, else up to the larger of it and ``SEND_BYTES``."""
        left = len(self._view) - self._at
        count = left if size is None or size < 0 else min(left, max(size, SEND_BYTES))
        found = self._view[self._at : self._at + count]
        self._at += count
        return found

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move, as in a file; a request that is sent again starts over."""
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: len(self._view)}[whence]
        self._at = base + offset
        return self._at

    def tell(self) -> int:
        """Return the position at which the next read begins."""
        return self._at

"""Follows the kernel's own ring buffer, ``/dev/kmsg``, from now on."""

from __future__ import annotations

import logging
import os
from pathlib import Path

log = logging.getLogger(__name__)
_RECORD_BYTES = 8192
_MOST = 4000
"""Records taken per call, so that a storm takes bounded time; the rest waits."""


class Kmsg:
    """Same use as :class:`~holdfast.agent.inspection.follow.Follower`. Unreadable: no lines, reported once."""

    def __init__(self, path: Path) -> None:
        self._file: int | None = None
        self.lost = 0
        """How often the kernel overwrote records before they were read."""
        try:
            self._file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            os.lseek(self._file, 0, os.SEEK_END)
        except OSError as error:
            log.warning("kernel log %s cannot be followed (%s): run the agent as root", path, error.strerror)

    def lines(self) -> list[str]:
        """Return the texts of the records that came since the last call."""
        found: list[str] = []
        while self._file is not None and len(found) < _MOST:
            try:
                record = os.read(self._file, _RECORD_BYTES)
            except BlockingIOError:
                break
            except BrokenPipeError:  # overwritten; the next read goes on with the oldest that is left
                self.lost += 1
                continue
            except OSError:
                break
            if not record:
                break
            found += lines_of(record)
        return found

    def close(self) -> None:
        """Close the device."""
        if self._file is not None:
            os.close(self._file)
        self._file = None


def text_of(record: bytes) -> str:
    """Return the text of ``6,1234,99999,-;text`` and lines of `` KEY=value`` (Documentation/ABI/testing/dev-kmsg)."""
    _, _, rest = record.partition(b";")
    return rest.partition(b"\n")[0].decode(errors="replace")


def lines_of(record: bytes) -> list[str]:
    """Return the lines of a record: a message of several has its newlines escaped."""
    return [line for line in text_of(record).split("\\x0a") if line.strip()]

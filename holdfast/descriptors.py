"""Descriptors that a script may close: ``os.closerange``, as libraries that make a daemon call it, spares none of ours.

The number of one that was closed is soon another file's.
"""

from __future__ import annotations

import os
from dataclasses import dataclass


@dataclass(frozen=True)
class Opened:
    """A descriptor, and the file that it has open."""

    descriptor: int
    device: int
    inode: int

    @classmethod
    def at(cls, descriptor: int) -> Opened:
        """Return ``descriptor`` with the file that it has open now."""
        found = os.fstat(descriptor)
        return cls(descriptor, found.st_dev, found.st_ino)

    def is_open(self) -> bool:
        """Return whether it still has that file open: else the number is no longer ours, not even to close."""
        try:
            found = os.fstat(self.descriptor)
        except OSError:
            return False
        return (found.st_dev, found.st_ino) == (self.device, self.inode)

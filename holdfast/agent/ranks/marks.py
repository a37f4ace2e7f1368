"""The mark of a rank on all processes forked from it; programs that it executes have its environment instead."""

from __future__ import annotations

import mmap
import os

NAME = "holdfast:"
"""How the mapping's name begins; the name of the rank's control page follows."""
_held: list[mmap.mmap] = []


def mark(control: str) -> None:
    """Mark this process, a rank, and all that will be forked from it, with the path of its control page."""
    descriptor = os.memfd_create(NAME + os.path.basename(control))
    try:
        os.ftruncate(descriptor, mmap.PAGESIZE)
        _held.append(mmap.mmap(descriptor, mmap.PAGESIZE))
    finally:
        os.close(descriptor)
